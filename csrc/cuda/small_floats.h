// Number formats of one and two bytes, by their bits: the same code on a GPU and on the host.
#pragma once

#include <stdint.h>
#include <string.h>

#ifdef __CUDACC__
#define VLLM_LITE_BOTH __host__ __device__ inline
#else
#define VLLM_LITE_BOTH inline
#endif

namespace vllm_lite::cuda {

struct Half {
  uint16_t bits;
};

struct BFloat16 {
  uint16_t bits;
};

// E4M3 has no infinity: all ones is its only NaN, and numbers reach up to 448.
struct Float8E4M3 {
  uint8_t bits;
};

struct Float8E5M2 {
  uint8_t bits;
};

VLLM_LITE_BOTH uint32_t bits_of(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}

VLLM_LITE_BOTH float float_of(uint32_t bits) {
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

VLLM_LITE_BOTH float widen(BFloat16 x) {
  return float_of(static_cast<uint32_t>(x.bits) << 16);
}

VLLM_LITE_BOTH float widen(Half x) {
  const uint32_t sign = static_cast<uint32_t>(x.bits & 0x8000u) << 16;
  const uint32_t magnitude = x.bits & 0x7fffu;
  if (magnitude >= 0x7c00u) return float_of(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);
  // As a float the bits are too small by 2 ** 112, subnormal numbers too.
  return float_of(sign | bits_of(float_of(magnitude << 13) * 0x1p112f));
}

}  // namespace vllm_lite::cuda
