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

// Eight-bit formats by the bits of their exponent and fraction. E4M3 has no infinity: all ones is
// its only NaN, and numbers reach up to 448.
struct Float8E4M3 {
  uint8_t bits;
  static constexpr int kBias = 7;
  static constexpr int kFraction = 3;
  static constexpr uint32_t kLargest = 0x7e;
  static constexpr float kLargestNumber = 448.0f;
};

struct Float8E5M2 {
  uint8_t bits;
  static constexpr int kBias = 15;
  static constexpr int kFraction = 2;
  static constexpr uint32_t kLargest = 0x7b;
  static constexpr float kLargestNumber = 57344.0f;
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

// To nearest, ties to even; what is too large becomes the largest number, and NaN stays NaN.
template <class Float8>
VLLM_LITE_BOTH Float8 encode(float x) {
  constexpr int kDropped = 23 - Float8::kFraction;
  const uint32_t sign = bits_of(x) >> 24 & 0x80u;
  const uint32_t magnitude = bits_of(x) & 0x7fffffffu;
  uint32_t code;
  if (magnitude > 0x7f800000u) {
    code = 0x7fu;
  } else if (float_of(magnitude) >= Float8::kLargestNumber) {
    code = Float8::kLargest;
  } else if (magnitude < static_cast<uint32_t>(128 - Float8::kBias) << 23) {
    // Subnormal: whole steps, rounded by the addition of a number whose unit is one.
    constexpr float kStepsOfOne = static_cast<float>(1 << (Float8::kBias - 1 + Float8::kFraction));
    code = bits_of(float_of(magnitude) * kStepsOfOne + 0x1p23f) & 0xffu;
  } else {
    const uint32_t odd = magnitude >> kDropped & 1u;
    const uint32_t rounded = magnitude + (1u << (kDropped - 1)) - 1u + odd;
    code = (rounded >> kDropped) -
           (static_cast<uint32_t>(127 - Float8::kBias) << Float8::kFraction);
  }
  return {static_cast<uint8_t>(sign | code)};
}

}  // namespace vllm_lite::cuda
