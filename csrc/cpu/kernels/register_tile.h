// Register tiles of GEMMs by packed bfloat16 pairs, or float32.
#pragma once

#include "cpu/kernels/simd.h"

namespace vllm_lite::VLLM_LITE_ISA {

// Vectors of outputs and rows of x in a register tile, as many as registers hold.
#if defined(__AVX512F__)
constexpr int kTileVectors = 2;
constexpr int kTileRows = 12;
#elif defined(__aarch64__)
// As many registers, a quarter as wide. Without products of pairs both their halves need some.
constexpr int kTileVectors = 4;
constexpr int kTileRows = VLLM_LITE_HAS_PAIR_PRODUCTS ? 6 : 5;
#else
constexpr int kTileVectors = 2;
constexpr int kTileRows = 5;
#endif
constexpr int kTileOutputs = kTileVectors * kLanes;
static_assert(kPanel % kTileOutputs == 0);

// Two bfloat16 of one row of x, as they lie in memory.
static inline uint32_t load_pair(const BFloat16* x) {
  uint32_t pair;
  memcpy(&pair, x, sizeof pair);
  return pair;
}

// An odd last input: its partner is zero.
static inline uint32_t load_last(const BFloat16* x) { return x->bits; }

// sum += low * low + high * high, for the bfloat16 pairs of `weights` and one pair of x.
static inline Vec add_pair_product(Vec sum, BitsVec weights, uint32_t x) {
#if VLLM_LITE_HAS_PAIR_PRODUCTS && defined(__aarch64__)
  return vbfdotq_f32(sum, bit_cast<bfloat16x8_t>(weights), bit_cast<bfloat16x8_t>(BitsVec{} + x));
#elif VLLM_LITE_HAS_PAIR_PRODUCTS
  return _mm512_dpbf16_ps(sum, bit_cast<__m512bh>(weights),
                          bit_cast<__m512bh>(_mm512_set1_epi32(static_cast<int>(x))));
#else
  const Vec low = bit_cast<Vec>(weights << 16), high = bit_cast<Vec>(weights & 0xffff0000u);
  sum = multiply_add(low, broadcast(bit_cast<float>(x << 16)), sum);
  return multiply_add(high, broadcast(bit_cast<float>(x & 0xffff0000u)), sum);
#endif
}

}  // namespace vllm_lite::VLLM_LITE_ISA
