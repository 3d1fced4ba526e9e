// Quantises rows of activations to int8 in groups with a scale; see QuantizeRows.
#pragma once

#include "cpu/kernels/simd.h"

namespace vllm_lite::VLLM_LITE_ISA {

constexpr int kGroupVectors = static_cast<int>(kQuantizedGroup) / kLanes;

// Groups of a row that are quantised side by side: four vectors are reduced at once.
constexpr int kGroupsAtOnce = 4;
typedef float FloatsOfGroups __attribute__((vector_size(kGroupsAtOnce * 4)));
typedef int32_t IntsOfGroups __attribute__((vector_size(kGroupsAtOnce * 4)));

// From the bits of groups' largest magnitudes. Codes are values times `factor`; if the
// scale is 0, so are factor and codes.
template <class Ints, class Floats>
static inline Ints scale_groups(Ints bits, Floats& factor, Floats& scale) {
  // A group below this would need a reciprocal that overflows.
  constexpr float kTiny = 0x1p-100f;
  constexpr int32_t kInfinity = 0x7f800000;
  const Floats magnitude = bit_cast<Floats>(bits), zero = {};
  const Ints is_valid = bits < kInfinity, is_used = is_valid & (magnitude >= kTiny);
  factor = is_used ? 127.0f / (is_used ? magnitude : zero + 1.0f) : zero;
  const Floats otherwise = is_valid ? zero : zero + bit_cast<float>(0x7fc00000);
  scale = is_used ? magnitude / 127.0f : otherwise;
  return is_used;
}

// Magnitudes are compared as integers, which puts NaN above infinity.
template <class T>
static inline IntVec largest_magnitudes(const T* x) {
  IntVec largest = {};
#pragma GCC unroll 8
  for (int i = 0; i < kGroupVectors; ++i) {
    const IntVec magnitude = bit_cast<IntVec>(load(x + i * kLanes)) & 0x7fffffff;
    largest = largest > magnitude ? largest : magnitude;
  }
  return largest;
}

// Codes of the values that `mask` keeps, and the negated sum of each half.
template <class T>
static inline void round_group(const T* x, int32_t mask, float factor, int8_t* codes,
                               IntVec& first, IntVec& second) {
  constexpr float kRounder = 12582912.0f;  // adding 1.5 * 2^23 rounds to an integer
  typedef int8_t Bytes __attribute__((vector_size(kLanes)));
  first = second = IntVec{};
#pragma GCC unroll 8
  for (int i = 0; i < kGroupVectors; ++i) {
    const Vec value = bit_cast<Vec>(bit_cast<IntVec>(load(x + i * kLanes)) & mask);
    const IntVec code = bit_cast<IntVec>(value * factor + kRounder) - bit_cast<int32_t>(kRounder);
    const Bytes bytes = __builtin_convertvector(code, Bytes);
    memcpy(codes + i * kLanes, &bytes, sizeof bytes);
    (2 * i < kGroupVectors ? first : second) -= code;
  }
}

// Quantises the group from x[i] on to to[i], for each i.
template <class T>
static inline void quantize_groups(const T* const (&x)[kGroupsAtOnce],
                                   QuantizedGroup* const (&to)[kGroupsAtOnce]) {
  IntVec largest[kGroupsAtOnce], first[kGroupsAtOnce], second[kGroupsAtOnce];
#pragma GCC unroll 4
  for (int i = 0; i < kGroupsAtOnce; ++i) largest[i] = largest_magnitudes(x[i]);
  const IntsOfGroups bits = fold_four(largest, [](auto a, auto b) { return a > b ? a : b; });
  FloatsOfGroups factor, scale;
  const IntsOfGroups is_used = scale_groups(bits, factor, scale);
#pragma GCC unroll 4
  for (int i = 0; i < kGroupsAtOnce; ++i) {
    round_group(x[i], is_used[i], factor[i], to[i]->codes, first[i], second[i]);
  }
  const auto add = [](auto a, auto b) { return a + b; };
  const IntsOfGroups first_sums = fold_four(first, add), second_sums = fold_four(second, add);
#pragma GCC unroll 4
  for (int i = 0; i < kGroupsAtOnce; ++i) {
    to[i]->scale = scale[i];
    to[i]->negated_half_sums[0] = first_sums[i];
    to[i]->negated_half_sums[1] = second_sums[i];
    to[i]->negated_sum = first_sums[i] + second_sums[i];
  }
}

template <class T>
static void quantize_range(const QuantizeRows& p, int64_t begin_row, int64_t end_row) {
  const int64_t num_groups = p.num_inputs / kQuantizedGroup;
  // By groups first: row by row, writes would be scattered over the memory of all groups.
  for (int64_t g = 0; g < num_groups; g += kGroupsAtOnce) {
    for (int64_t row = begin_row; row < end_row; ++row) {
      const T* x[kGroupsAtOnce];
      QuantizedGroup* to[kGroupsAtOnce];
      for (int i = 0; i < kGroupsAtOnce; ++i) {
        const int64_t group = min_of(g + i, num_groups - 1);  // the last one several times
        x[i] = static_cast<const T*>(p.x) + row * p.x_stride + group * kQuantizedGroup;
        to[i] = p.groups + group * p.num_rows + row;
      }
      quantize_groups(x, to);
    }
  }
}

#if defined(__AVX512BW__)

// Groups of bfloat16, each in one vector, being quantised. Each stage processes all of them,
// so that latencies overlap.
class GroupBatch {
 public:
  static constexpr int kSize = 4 * kLanes;

  bool is_full() const { return count_ == kSize; }
  void add(const BFloat16* x, QuantizedGroup* to) {
    from_[count_] = x;
    to_[count_++] = to;
  }

  // Quantises the groups added so far and clears the list.
  void round() {
    if (count_ == 0) return;
    while (count_ % kLanes != 0) add(from_[count_ - 1], to_[count_ - 1]);
    for (int i = 0; i < count_; ++i) distances_[i] = distance_of_largest(load_group(i));
    for (int i = 0; i < count_; i += kLanes) {
      IntVec distance;
      memcpy(&distance, distances_ + i, sizeof distance);
      Vec factor, scale;
      scale_groups((0x7fff - (distance & 0xffff)) << 16, factor, scale);
      store(factors_ + i, factor);
      store(scales_ + i, scale);
    }
    for (int i = 0; i < count_; ++i) round_group(i);
    for (int i = 0; i < count_; i += kLanes) write_sums(i);
    count_ = 0;
  }

 private:
  typedef uint16_t Words __attribute__((vector_size(64)));
  typedef long long Quads __attribute__((vector_size(64)));
  typedef long long HalfQuads __attribute__((vector_size(32)));

  Words load_group(int i) const {
    Words words;
    memcpy(&words, from_[i], sizeof words);
    return words;
  }

  // How far below 0x7fff the bits of the largest magnitude are, in the low half of the result: there
  // is an instruction for the least of eight words.
  static int32_t distance_of_largest(Words x) {
    const Quads distances = bit_cast<Quads>(~x & 0x7fff);
    const HalfQuads low = __builtin_shufflevector(distances, distances, 0, 1, 2, 3);
    const HalfQuads high = __builtin_shufflevector(distances, distances, 4, 5, 6, 7);
    const __m256i least = _mm256_min_epu16(bit_cast<__m256i>(low), bit_cast<__m256i>(high));
    return _mm_cvtsi128_si32(_mm_minpos_epu16(
        _mm_min_epu16(_mm256_castsi256_si128(least), _mm256_extracti128_si256(least, 1))));
  }

  static IntVec rounded(Vec x) { return bit_cast<IntVec>(_mm512_maskz_cvtps_epi32(0xffff, x)); }

  // Non-finite values times a factor of 0 become a number whose low bits are zero.
  void round_group(int i) {
    const BitsVec pairs = bit_cast<BitsVec>(load_group(i));
    const Vec factor = broadcast(factors_[i]);
    const IntVec even = rounded(bit_cast<Vec>(pairs << 16) * factor);
    const IntVec odd = rounded(bit_cast<Vec>(pairs & 0xffff0000) * factor);
    const __m512i words = bit_cast<__m512i>((even & 0xffff) | odd << 16);
    const __m256i codes = _mm512_maskz_cvtepi16_epi8(0xffffffff, words);
    memcpy(to_[i]->codes, &codes, sizeof codes);
    // Sums of eight bytes that are moved up by 128 each.
    const __m256i eights = _mm256_sad_epu8(_mm256_xor_si256(codes, _mm256_set1_epi8(-128)),
                                           _mm256_setzero_si256());
    const __m256i halves = _mm256_add_epi64(eights, _mm256_bsrli_epi128(eights, 8));
    half_sums_[0][i] = _mm_cvtsi128_si32(_mm256_castsi256_si128(halves));
    half_sums_[1][i] = _mm_cvtsi128_si32(_mm256_extracti128_si256(halves, 1));
  }

  // Scales and sums after the codes of kLanes groups.
  void write_sums(int i) {
    IntVec scales, first, second;
    memcpy(&scales, scales_ + i, sizeof scales);
    memcpy(&first, half_sums_[0] + i, sizeof first);
    memcpy(&second, half_sums_[1] + i, sizeof second);
    first = kHalfGroup * 128 - first;
    second = kHalfGroup * 128 - second;
    BitsVec rows[4] = {bit_cast<BitsVec>(scales), bit_cast<BitsVec>(first),
                       bit_cast<BitsVec>(second), bit_cast<BitsVec>(first + second)};
    transpose_quarters(rows);
    constexpr size_t kTail = sizeof(QuantizedGroup) - kQuantizedGroup;
    static_assert(kTail == 16);
#pragma GCC unroll 16
    for (int k = 0; k < kLanes; ++k) {
      const char* tail = reinterpret_cast<const char*>(&rows[k % 4]) + k / 4 * kTail;
      memcpy(reinterpret_cast<char*>(to_[i + k]) + kQuantizedGroup, tail, kTail);
    }
  }

  static constexpr int kHalfGroup = static_cast<int>(kQuantizedGroup) / 2;

  int count_ = 0;
  const BFloat16* from_[kSize];
  QuantizedGroup* to_[kSize];
  alignas(64) int32_t distances_[kSize];
  alignas(64) float factors_[kSize];
  alignas(64) float scales_[kSize];
  alignas(64) int32_t half_sums_[2][kSize];
};

template <>
void quantize_range<BFloat16>(const QuantizeRows& p, int64_t begin_row, int64_t end_row) {
  // Groups of a row for which memory is prefetched; more would scatter writes.
  constexpr int64_t kNeighbours = 8;
  const int64_t num_groups = p.num_inputs / kQuantizedGroup;
  GroupBatch batch;
  for (int64_t first = 0; first < num_groups; first += kNeighbours) {
    const int64_t end = min_of(first + kNeighbours, num_groups);
    for (int64_t row = begin_row; row < end_row; ++row) {
      const BFloat16* x = static_cast<const BFloat16*>(p.x) + row * p.x_stride;
      for (int64_t g = first; g < end; ++g) {
        batch.add(x + g * kQuantizedGroup, p.groups + g * p.num_rows + row);
        if (batch.is_full()) batch.round();
      }
    }
  }
  batch.round();
}

#endif

}  // namespace vllm_lite::VLLM_LITE_ISA
