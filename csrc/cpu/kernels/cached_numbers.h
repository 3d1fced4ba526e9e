// The 8-bit types of KV caches: two floating-point types (OCP OFP8)
// and int8 with a scale for each row. All values are exact in bfloat16.
#pragma once

#include "cpu/kernels/simd.h"

namespace vllm_lite::VLLM_LITE_ISA {

typedef uint8_t ByteVec __attribute__((vector_size(kLanes)));

static inline BitsVec widen(ByteVec bytes) {
#if defined(__AVX512F__)
  return bit_cast<BitsVec>(_mm512_maskz_cvtepu8_epi32(0xffff, bit_cast<__m128i>(bytes)));
#elif defined(__AVX2__)
  return bit_cast<BitsVec>(_mm256_cvtepu8_epi32(_mm_cvtsi64_si128(bit_cast<int64_t>(bytes))));
#else
  return __builtin_convertvector(bytes, BitsVec);
#endif
}
static inline ByteVec narrow_to_bytes(BitsVec bits) {
#if defined(__AVX512F__)
  return bit_cast<ByteVec>(_mm512_maskz_cvtepi32_epi8(0xffff, bit_cast<__m512i>(bits)));
#else
  return __builtin_convertvector(bits, ByteVec);
#endif
}

// Adding 1.5 * 2^23 rounds to an integer (to nearest even), which then stands in the low bits.
static inline BitsVec to_integers(Vec v) {
  constexpr float kRounder = 12582912.0f;
  return bit_cast<BitsVec>(v + kRounder) - bit_cast<uint32_t>(kRounder);
}

// kMantissa bits of mantissa and 7 - kMantissa of exponent. Codes (without their sign) below
// kFirstNormal are subnormal numbers, those from kFirstSpecial on are no numbers or infinite.
template <int kMantissaBits, int kSpecialCode>
struct Float8 {
  static constexpr int kMantissa = kMantissaBits;
  static constexpr int kFirstNormal = 1 << kMantissa;
  static constexpr int kFirstSpecial = kSpecialCode;
  static constexpr int kBias = (1 << (6 - kMantissa)) - 1;
  // What turns a code that was shifted to the place of a float's mantissa into that float.
  static constexpr int kRebias = 127 - kBias;
  uint8_t bits;
};
using Float8E4M3 = Float8<3, 0x7f>;  // only the last code is NaN; nothing is infinite
using Float8E5M2 = Float8<2, 0x7c>;  // infinity, and three NaN
struct Int8 {
  int8_t value;
};

// ---- codes, one in the low byte of each lane

template <int kMantissa, int kSpecial>
static inline Vec decode(BitsVec codes, const Float8<kMantissa, kSpecial>*) {
  using Type = Float8<kMantissa, kSpecial>;
  const float smallest = bit_cast<float>(uint32_t{128 - Type::kBias - kMantissa} << 23);
  const IntVec magnitude = bit_cast<IntVec>(codes & 0x7f);
  const IntVec shifted = magnitude << (23 - kMantissa);
  const IntVec normal = shifted + (Type::kRebias << 23);
  const Vec subnormal = __builtin_convertvector(magnitude, Vec) * smallest;
  IntVec bits = magnitude < Type::kFirstNormal ? bit_cast<IntVec>(subnormal) : normal;
  bits = magnitude < Type::kFirstSpecial ? bits : shifted | 0x7f800000;
  return bit_cast<Vec>(bit_cast<BitsVec>(bits) | (codes & 0x80) << 24);
}

// To nearest even, clamped to the largest number, infinities included. NaN stays NaN.
template <int kMantissa, int kSpecial>
static inline BitsVec encode(Vec v, const Float8<kMantissa, kSpecial>*) {
  using Type = Float8<kMantissa, kSpecial>;
  constexpr int kShift = 23 - kMantissa;
  constexpr int32_t kLargest = ((Type::kFirstSpecial - 1) << kShift) + (Type::kRebias << 23);
  constexpr int32_t kSmallestNormal = (Type::kRebias + 1) << 23;
  const float subnormals = bit_cast<float>(uint32_t{126 + Type::kBias + kMantissa} << 23);
  const BitsVec bits = bit_cast<BitsVec>(v);
  const IntVec given = bit_cast<IntVec>(bits & 0x7fffffffu);
  const IntVec magnitude = given < kLargest ? given : IntVec{} + kLargest;
  const IntVec rounded = magnitude + ((1 << (kShift - 1)) - 1) + ((magnitude >> kShift) & 1);
  const IntVec normal = (rounded >> kShift) - (Type::kRebias << kMantissa);
  const BitsVec subnormal = to_integers(bit_cast<Vec>(magnitude) * subnormals);
  BitsVec code = magnitude < kSmallestNormal ? subnormal : bit_cast<BitsVec>(normal);
  code = given > 0x7f800000 ? BitsVec{} + 0x7f : code;
  return code | ((bits >> 24) & 0x80);
}

static inline Vec decode(BitsVec codes, const Int8*) {
  return __builtin_convertvector(bit_cast<IntVec>(codes << 24) >> 24, Vec);
}
static inline BitsVec encode(Vec v, const Int8*) { return to_integers(v); }

// ---- memory

template <class Code>
concept IsCode = sizeof(Code) == 1;

template <IsCode Code>
static inline Vec load(const Code* from) {
  ByteVec bytes;
  memcpy(&bytes, from, sizeof bytes);
  return decode(widen(bytes), from);
}
template <IsCode Code>
static inline void store(Code* to, Vec v) {
  const ByteVec bytes = narrow_to_bytes(encode(v, to));
  memcpy(to, &bytes, sizeof bytes);
}

// The first `count` bytes, one a lane; the rest is zero.
static inline BitsVec load_bytes(const void* from, int64_t count) {
  ByteVec bytes{};
  memcpy(&bytes, from, count);
  return widen(bytes);
}

#if VLLM_LITE_HAS_PAIR_PRODUCTS
// ---- pairs of codes, one in the low byte of each half of a lane, as pairs of bfloat16

#if defined(__AVX512BF16__)
template <int kMantissa, int kSpecial>
static inline BitsVec decode_pairs(BitsVec codes, const Float8<kMantissa, kSpecial>*) {
  using Type = Float8<kMantissa, kSpecial>;
  // Subnormal numbers by their code, and from the end back the codes that are not finite.
  alignas(64) static constexpr auto kExceptions = [] {
    struct { uint16_t bits[32]; } table{};
    for (int code = 1; code < Type::kFirstNormal; ++code) {
      int top = 0;
      while (code >> (top + 1)) ++top;
      const int exponent = 128 - Type::kBias - kMantissa + top;
      table.bits[code] = (exponent << 7) | ((code << (7 - top)) & 0x7f);
    }
    for (int code = Type::kFirstSpecial; code < 128; ++code) {
      table.bits[code & 31] = 0x7f80 | (code << (7 - kMantissa) & 0x7f);
    }
    return table;
  }();
  const __m512i all = bit_cast<__m512i>(codes);
  const __m512i magnitude = _mm512_and_si512(all, _mm512_set1_epi16(0x7f));
  const __m512i sign = _mm512_slli_epi16(_mm512_sub_epi16(all, magnitude), 8);
  const __m512i above = _mm512_sub_epi16(magnitude, _mm512_set1_epi16(Type::kFirstNormal));
  const __mmask32 exception = _mm512_cmpgt_epu16_mask(
      above, _mm512_set1_epi16(Type::kFirstSpecial - Type::kFirstNormal - 1));
  const __m512i normal = _mm512_add_epi16(_mm512_slli_epi16(magnitude, 7 - kMantissa),
                                          _mm512_set1_epi16(Type::kRebias << 7));
  const __m512i bits = _mm512_mask_permutexvar_epi16(
      normal, exception, magnitude, _mm512_load_si512(kExceptions.bits));
  return bit_cast<BitsVec>(_mm512_or_si512(bits, sign));
}
#endif

template <class Code>
static inline BitsVec decode_pairs(BitsVec codes, const Code* type) {
  const BitsVec low = bit_cast<BitsVec>(decode(codes, type));
  const BitsVec high = bit_cast<BitsVec>(decode(codes >> 16, type));
  return low >> 16 | high;
}
#endif

}  // namespace vllm_lite::VLLM_LITE_ISA
