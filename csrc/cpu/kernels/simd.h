// Float vectors of the width that this translation unit is compiled for.
//
// For cpu/kernels/*.cpp only. Everything here is `static`, so that nothing compiled for one
// instruction set can be linked into code for another; for the same reason the C++ standard
// library is not used there.
#pragma once

#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#include "cpu/kernel_table.h"

// Whether there is an instruction for products of bfloat16 pairs.
#if defined(__AVX512BF16__) || defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
#define VLLM_LITE_HAS_PAIR_PRODUCTS 1
#else
#define VLLM_LITE_HAS_PAIR_PRODUCTS 0
#endif

namespace vllm_lite::VLLM_LITE_ISA {

#if defined(__AVX512F__)
constexpr int kLanes = 16;
#elif defined(__AVX2__)
constexpr int kLanes = 8;
#else
constexpr int kLanes = 4;
#endif

typedef float Vec __attribute__((vector_size(kLanes * 4)));
typedef int32_t IntVec __attribute__((vector_size(kLanes * 4)));
typedef uint32_t BitsVec __attribute__((vector_size(kLanes * 4)));
typedef uint16_t HalfVec __attribute__((vector_size(kLanes * 2)));

template <class T>
static constexpr T min_of(T a, T b) {
  return a < b ? a : b;
}
template <class T>
static constexpr T max_of(T a, T b) {
  return a > b ? a : b;
}
static inline int64_t round_up(int64_t n, int64_t multiple) {
  return ceil_divide(n, multiple) * multiple;
}

template <class To, class From>
static inline To bit_cast(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  memcpy(&to, &from, sizeof to);
  return to;
}

template <int N>
struct Constant {
  static constexpr int value = N;
};

// Calls body(Constant<n>) for 1 <= n <= N.
template <int N, class Body>
static inline void with_constant(int64_t n, Body&& body) {
  if constexpr (N > 1) {
    if (n < N) return with_constant<N - 1>(n, body);
  }
  body(Constant<N>{});
}

static inline Vec broadcast(float x) { return x - Vec{}; }

// ---- memory

// Calls function(T()) with the type of numbers: float or BFloat16.
template <class Function>
static inline void with_type(DType dtype, Function&& function) {
  dtype == DType::kBFloat16 ? function(BFloat16{}) : function(0.0f);
}

static inline float to_float(float x) { return x; }
static inline float to_float(BFloat16 x) { return bit_cast<float>(uint32_t{x.bits} << 16); }

static inline void from_float(float* to, float x) { *to = x; }
static inline void from_float(BFloat16* to, float x) {
  const uint32_t bits = bit_cast<uint32_t>(x);
  // To nearest even; a NaN must not round up into an infinity.
  to->bits = x != x ? 0x7fc0 : (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
}

static inline Vec load(const float* from) {
  Vec v;
  memcpy(&v, from, sizeof v);
  return v;
}
// Compilers turn __builtin_convertvector into several instructions where one would do. (The masked
// forms compile to the plain instructions, without GCC's false warnings about the latter.)
static inline BitsVec widen(HalfVec bits) {
#if defined(__AVX512F__)
  return bit_cast<BitsVec>(_mm512_maskz_cvtepu16_epi32(0xffff, bit_cast<__m256i>(bits)));
#elif defined(__AVX2__)
  return bit_cast<BitsVec>(_mm256_cvtepu16_epi32(bit_cast<__m128i>(bits)));
#else
  return __builtin_convertvector(bits, BitsVec);
#endif
}
static inline HalfVec narrow(BitsVec bits) {
#if defined(__AVX512F__)
  return bit_cast<HalfVec>(_mm512_maskz_cvtepi32_epi16(0xffff, bit_cast<__m512i>(bits)));
#else
  return __builtin_convertvector(bits, HalfVec);
#endif
}

static inline Vec load(const BFloat16* from) {
  HalfVec bits;
  memcpy(&bits, from, sizeof bits);
  return bit_cast<Vec>(widen(bits) << 16);
}

// AVX512-BF16's own instruction flushes subnormal numbers to zero: where there is one, not by it.
static inline HalfVec to_bfloat16_bits(Vec v) {
#if defined(__AVX512BF16__)
  constexpr int kSubnormal = 0x20;
  if (_mm512_fpclass_ps_mask(v, kSubnormal) == 0) [[likely]] {
    return bit_cast<HalfVec>(_mm512_cvtneps_pbh(v));
  }
#endif
  const BitsVec bits = bit_cast<BitsVec>(v);
  const BitsVec rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  const BitsVec nan = BitsVec{} + 0x7fc0;
  return narrow(v == v ? rounded : nan);
}

static inline void store(float* to, Vec v) { memcpy(to, &v, sizeof v); }
static inline void store(BFloat16* to, Vec v) {
  const HalfVec bits = to_bfloat16_bits(v);
  memcpy(to, &bits, sizeof bits);
}

// The first `count` < kLanes elements; the rest is zero, or left as it was.
template <class T>
static inline Vec load_partial(const T* from, int64_t count) {
  T padded[kLanes] = {};
  memcpy(padded, from, count * sizeof(T));
  return load(padded);
}
template <class T>
static inline void store_partial(T* to, Vec v, int64_t count) {
  T padded[kLanes];
  store(padded, v);
  memcpy(to, padded, count * sizeof(T));
}

// v rounded to storage type T.
static inline Vec rounded_to(const float*, Vec v) { return v; }
static inline Vec rounded_to(const BFloat16*, Vec v) {
  return bit_cast<Vec>(widen(to_bfloat16_bits(v)) << 16);
}

// Calls body(offset, count) over [0, size) in steps of a vector; count < kLanes only at the end.
template <class Body>
static inline void for_each_vector(int64_t size, Body&& body) {
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) body(i, int64_t{kLanes});
  if (i < size) body(i, size - i);
}
template <class T>
static inline Vec load_upto(const T* from, int64_t count) {
  return count == kLanes ? load(from) : load_partial(from, count);
}
template <class T>
static inline void store_upto(T* to, Vec v, int64_t count) {
  if (count == kLanes) {
    store(to, v);
  } else {
    store_partial(to, v, count);
  }
}

// ---- arithmetic

static inline Vec multiply_add(Vec a, Vec b, Vec c) {
#if defined(__AVX512F__)
  return _mm512_fmadd_ps(a, b, c);
#elif defined(__FMA__)
  return _mm256_fmadd_ps(a, b, c);
#elif defined(__aarch64__)
  return vfmaq_f32(c, a, b);
#else
  return a * b + c;
#endif
}

// A NaN in `a` stays. Compilers make two instructions of the plain form where b is a constant.
static inline Vec max_lanes(Vec a, Vec b) {
#if defined(__AVX512F__)
  return _mm512_maskz_max_ps(0xffff, b, a);
#elif defined(__AVX2__)
  return _mm256_max_ps(b, a);
#else
  return a < b ? b : a;
#endif
}
static inline Vec min_lanes(Vec a, Vec b) {
#if defined(__AVX512F__)
  return _mm512_maskz_min_ps(0xffff, b, a);
#elif defined(__AVX2__)
  return _mm256_min_ps(b, a);
#else
  return a > b ? b : a;
#endif
}

// Combines quarters of lanes, the two halves first; what is left are four lanes.
template <class V, class Combine>
static inline auto fold_quarters(V v, [[maybe_unused]] Combine&& combine) {
#if defined(__AVX512F__)
  const auto v8 = combine(__builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7),
                          __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15));
#elif defined(__AVX2__)
  const auto v8 = v;
#endif
#if defined(__AVX2__)
  return combine(__builtin_shufflevector(v8, v8, 0, 1, 2, 3),
                 __builtin_shufflevector(v8, v8, 4, 5, 6, 7));
#else
  return v;
#endif
}
// Combines all lanes.
template <class Combine>
static inline float fold_lanes(Vec v, Combine&& combine) {
  const auto v4 = fold_quarters(v, combine);
  return combine(combine(v4[0], v4[2]), combine(v4[1], v4[3]));
}
static inline float reduce_add(Vec v) {
  return fold_lanes(v, [](auto a, auto b) { return a + b; });
}
static inline float reduce_max(Vec v) {
  return fold_lanes(v, [](auto a, auto b) { return a > b ? a : b; });
}
#if defined(__AVX2__) && !defined(__AVX512F__)
// For each set of lanes, as bits: the lanes that are in it, one after the other.
struct LanesOfSets {
  alignas(32) int32_t lanes[256][8] = {};
  constexpr LanesOfSets() {
    for (int set = 0; set < 256; ++set) {
      for (int lane = 0, n = 0; lane < 8; ++lane) {
        if (set >> lane & 1) lanes[set][n++] = lane;
      }
    }
  }
};
inline constexpr LanesOfSets kLanesOfSets;
#endif
// Writes the lanes from `low` to below `high`, and no more than a vector; returns how many.
static inline int64_t store_between(Vec v, float low, float high, float* to) {
#if defined(__AVX512F__)
  const __mmask16 above = _mm512_cmp_ps_mask(v, broadcast(low), _CMP_GE_OQ);
  const __mmask16 lanes = _mm512_mask_cmp_ps_mask(above, v, broadcast(high), _CMP_LT_OQ);
  _mm512_storeu_ps(to, _mm512_maskz_compress_ps(lanes, v));
  return __builtin_popcount(lanes);
#elif defined(__AVX2__)
  const __m256 inside = _mm256_and_ps(_mm256_cmp_ps(v, broadcast(low), _CMP_GE_OQ),
                                      _mm256_cmp_ps(v, broadcast(high), _CMP_LT_OQ));
  const int set = _mm256_movemask_ps(inside);
  const __m256i lanes = _mm256_load_si256(
      reinterpret_cast<const __m256i*>(kLanesOfSets.lanes[set]));
  _mm256_storeu_ps(to, _mm256_permutevar8x32_ps(v, lanes));
  return __builtin_popcount(set);
#else
  int64_t count = 0;
  for (int lane = 0; lane < kLanes; ++lane) {
    to[count] = v[lane];
    count += (v[lane] >= low) & (v[lane] < high);
  }
  return count;
#endif
}

// e^x to about 2 units in the last place; 0 below -87.3, finite above 88.3. exp(0) is exactly 1,
// which makes the merge with an empty span exact.
static inline Vec exponential(Vec x) {
  constexpr float kLowest = -87.3f;
  constexpr float kHighest = 88.3f;
  constexpr float kLog2E = 1.44269504088896341f;
  constexpr float kLn2High = 0.693359375f;
  constexpr float kLn2Low = -2.12194440e-4f;
  // Adding 1.5 * 2^23 rounds to an integer, which then stands in the low mantissa bits.
  constexpr float kRounder = 12582912.0f;
  Vec bounded = min_lanes(x, broadcast(kHighest));
#if !defined(__AVX512F__)
  bounded = max_lanes(bounded, broadcast(kLowest));
#endif
  const Vec shifted = bounded * kLog2E + kRounder;
  const Vec n = shifted - kRounder;
  Vec r = multiply_add(n, broadcast(-kLn2High), bounded);
  r = multiply_add(n, broadcast(-kLn2Low), r);
  Vec p = broadcast(1.9875691500e-4f);
  p = multiply_add(p, r, broadcast(1.3981999507e-3f));
  p = multiply_add(p, r, broadcast(8.3334519073e-3f));
  p = multiply_add(p, r, broadcast(4.1665795894e-2f));
  p = multiply_add(p, r, broadcast(1.6666665459e-1f));
  p = multiply_add(p, r, broadcast(5.0000001201e-1f));
  p = multiply_add(p, r * r, r) + 1.0f;
#if defined(__AVX512F__)
  const __mmask16 is_normal = _mm512_cmp_ps_mask(x, broadcast(kLowest), _CMP_NLT_UQ);
  return _mm512_maskz_scalef_ps(is_normal, p, n);
#else
  const IntVec exponent = (bit_cast<IntVec>(shifted) - bit_cast<int32_t>(kRounder)) << 23;
  const Vec scaled = bit_cast<Vec>(bit_cast<IntVec>(p) + exponent);
  return x < broadcast(kLowest) ? Vec{} : scaled;
#endif
}

static inline float exponential(float x) { return exponential(broadcast(x))[0]; }

static inline Vec silu(Vec x) { return x / (1.0f + exponential(-x)); }

// ---- layout

// a0 b0 a1 b1 (a2 b2 a3 b3) of every four lanes.
static inline BitsVec interleave_low(BitsVec a, BitsVec b) {
#if defined(__AVX512F__)
  return __builtin_shufflevector(a, b, 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29);
#elif defined(__AVX2__)
  return __builtin_shufflevector(a, b, 0, 8, 1, 9, 4, 12, 5, 13);
#else
  return __builtin_shufflevector(a, b, 0, 4, 1, 5);
#endif
}
static inline BitsVec interleave_high(BitsVec a, BitsVec b) {
#if defined(__AVX512F__)
  return __builtin_shufflevector(a, b, 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31);
#elif defined(__AVX2__)
  return __builtin_shufflevector(a, b, 2, 10, 3, 11, 6, 14, 7, 15);
#else
  return __builtin_shufflevector(a, b, 2, 6, 3, 7);
#endif
}

// Swaps rows and columns of the square that every four lanes of four vectors are. An interleave
// rotates the bits of an element's (row, column) address by one; two of them change places.
static inline void transpose_quarters(BitsVec (&rows)[4]) {
#pragma GCC unroll 2
  for (int stage = 0; stage < 2; ++stage) {
    const BitsVec next[4] = {interleave_low(rows[0], rows[2]), interleave_high(rows[0], rows[2]),
                             interleave_low(rows[1], rows[3]), interleave_high(rows[1], rows[3])};
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) rows[i] = next[i];
  }
}

// kLanes rows: four and four lie one after the other, `stride` bytes apart.
struct FoursOfRows {
  const char* fours[kLanes / 4];
  int64_t stride;
};

// 16 bytes each of rows i, 4 + i, 8 + i, ...
static inline BitsVec load_quarters(const FoursOfRows& rows, int i, int64_t offset) {
  offset += i * rows.stride;
#if defined(__AVX512F__)
  const auto quarter = [&](int k) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(rows.fours[k] + offset));
  };
  __m512i all = _mm512_zextsi128_si512(quarter(0));
  all = _mm512_mask_broadcast_i32x4(all, 0x00f0, quarter(1));
  all = _mm512_mask_broadcast_i32x4(all, 0x0f00, quarter(2));
  return bit_cast<BitsVec>(_mm512_mask_broadcast_i32x4(all, 0xf000, quarter(3)));
#elif defined(__AVX2__)
  // Not through memory: a load of what two stores wrote waits for both to leave their buffer.
  const auto half = [&](int k) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(rows.fours[k] + offset));
  };
  return bit_cast<BitsVec>(
      _mm256_inserti128_si256(_mm256_castsi128_si256(half(0)), half(1), 1));
#else
  BitsVec all{};
  for (int k = 0; k < kLanes / 4; ++k) {
    memcpy(reinterpret_cast<char*>(&all) + 16 * k, rows.fours[k] + offset, 16);
  }
  return all;
#endif
}

// Four words of kLanes rows, one row a lane. Loads put quarters of vectors in their places, which
// saves half of a transposition's shuffles.
[[gnu::always_inline]] static inline void load_words(const FoursOfRows& rows, int64_t offset,
                                                     BitsVec (&words)[4]) {
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) words[i] = load_quarters(rows, i, offset);
  transpose_quarters(words);
}

static inline void store_words(void* to, BitsVec words) { memcpy(to, &words, sizeof words); }

// Combines all lanes of each of four vectors.
template <class Combine>
static inline auto fold_four(const IntVec (&vectors)[4], Combine&& combine) {
  BitsVec rows[4];
  for (int i = 0; i < 4; ++i) rows[i] = bit_cast<BitsVec>(vectors[i]);
  transpose_quarters(rows);
  const IntVec low = combine(bit_cast<IntVec>(rows[0]), bit_cast<IntVec>(rows[1]));
  const IntVec high = combine(bit_cast<IntVec>(rows[2]), bit_cast<IntVec>(rows[3]));
  return fold_quarters(combine(low, high), combine);
}

}  // namespace vllm_lite::VLLM_LITE_ISA
