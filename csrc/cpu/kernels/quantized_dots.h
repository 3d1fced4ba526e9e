// Dot products of int8: packed codes by quantised activations.
#pragma once

#include "cpu/kernels/quantized_unpack.h"

namespace vllm_lite::VLLM_LITE_ISA {

// Whether codes need all eight bits, so that pairs of products may exceed 16.
template <class Block>
constexpr bool kIsWide = Block::kOffset == 128;

#if defined(__AVX2__)
// Compilers would keep many products, in memory, and add them up last.
static inline void keep_order(IntVec& sums) { asm("" : "+v"(sums)); }
#endif

// Adds products of four neighbouring codes and bytes of x to each lane.
template <bool kIsWide>
static inline IntVec add_dots(IntVec sums, CodeVec codes, const int8_t* x) {
  int32_t four;
  memcpy(&four, x, sizeof four);
#if defined(__AVX512VNNI__)
  return bit_cast<IntVec>(_mm512_dpbusd_epi32(bit_cast<__m512i>(sums), bit_cast<__m512i>(codes),
                                              _mm512_set1_epi32(four)));
#elif defined(__ARM_FEATURE_MATMUL_INT8)
  return bit_cast<IntVec>(vusdotq_s32(bit_cast<int32x4_t>(sums), bit_cast<uint8x16_t>(codes),
                                      bit_cast<int8x16_t>(IntVec{} + four)));
#elif defined(__AVX2__)
  typedef int16_t Pairs __attribute__((vector_size(kLanes * 4)));
  typedef uint16_t UnsignedPairs __attribute__((vector_size(kLanes * 4)));
  const Pairs bytes = bit_cast<Pairs>(IntVec{} + four);
#if defined(__AVX512BW__)
  const auto add_pairs = [](Pairs a, Pairs b) {
    return bit_cast<IntVec>(_mm512_madd_epi16(bit_cast<__m512i>(a), bit_cast<__m512i>(b)));
  };
  const auto multiply = [](CodeVec a, Pairs b) {
    return bit_cast<Pairs>(_mm512_maddubs_epi16(bit_cast<__m512i>(a), bit_cast<__m512i>(b)));
  };
#else
  const auto add_pairs = [](Pairs a, Pairs b) {
    return bit_cast<IntVec>(_mm256_madd_epi16(bit_cast<__m256i>(a), bit_cast<__m256i>(b)));
  };
  const auto multiply = [](CodeVec a, Pairs b) {
    return bit_cast<Pairs>(_mm256_maddubs_epi16(bit_cast<__m256i>(a), bit_cast<__m256i>(b)));
  };
#endif
  if constexpr (kIsWide) {
    const Pairs even = bit_cast<Pairs>(codes) & 0xff;
    const Pairs odd = bit_cast<Pairs>(bit_cast<UnsignedPairs>(codes) >> 8);
    keep_order(sums += add_pairs(even, bytes << 8 >> 8));
    keep_order(sums += add_pairs(odd, bytes >> 8));
    return sums;
  } else {
    return sums + add_pairs(multiply(codes, bytes), Pairs{} + 1);
  }
#else
  const BitsVec bits = bit_cast<BitsVec>(codes);
  for (int i = 0; i < 4; ++i) {
    sums += bit_cast<IntVec>(bits >> 8 * i & 0xff) * static_cast<int32_t>(x[i]);
  }
  return sums;
#endif
}

// Whether wide products take x as integers of 16 bits, which are cheaper to broadcast than to make.
#if defined(__AVX2__) && !defined(__AVX512VNNI__)
#define VLLM_LITE_WIDENS_CODES 1

// Codes of a group of x: of every four neighbours, the even two and the odd two.
struct WideCodes {
  void take(const int8_t* x) {
    typedef int16_t Pairs __attribute__((vector_size(kQuantizedGroup)));
    Pairs bytes;
    memcpy(&bytes, x, sizeof bytes);
    const Pairs pairs[2] = {bytes << 8 >> 8, bytes >> 8};
    memcpy(even, pairs, sizeof pairs);
  }
  alignas(32) int32_t even[kQuantizedGroup / 4];
  int32_t odd[kQuantizedGroup / 4];
};

// Line `i` of a group: as add_dots<true>.
static inline IntVec add_dots(IntVec sums, CodeVec codes, const WideCodes& x, int i) {
  typedef uint16_t Pairs __attribute__((vector_size(kLanes * 4)));
  const Pairs even = bit_cast<Pairs>(codes) & 0xff, odd = bit_cast<Pairs>(codes) >> 8;
  const auto add = [&](Pairs of, int32_t by) {
#if defined(__AVX512BW__)
    const __m512i products = _mm512_madd_epi16(bit_cast<__m512i>(of), _mm512_set1_epi32(by));
#else
    const __m256i products = _mm256_madd_epi16(bit_cast<__m256i>(of), _mm256_set1_epi32(by));
#endif
    keep_order(sums += bit_cast<IntVec>(products));
  };
  add(even, x.even[i]);
  add(odd, x.odd[i]);
  return sums;
}
#endif

}  // namespace vllm_lite::VLLM_LITE_ISA
