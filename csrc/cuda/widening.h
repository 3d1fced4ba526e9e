// Keys and values of one byte as pairs of a query's two-byte type, exactly.
//
// Bytes are moved to where the wider format has its sign and its lowest exponent bits; as numbers
// they are then too small by a power of two, which one multiplication of pairs gives back. That is
// five instructions a pair on every GPU. A NaN of E4M3 thereby reads as 480, one of E5M2 in
// bfloat16 as a number beyond 57344; GPUs that convert by themselves (sm_89 on) keep NaN.
#pragma once

#include "cuda/device.h"

namespace vllm_lite::cuda {

template <class Wide, class Narrow>
struct Placement;  // how far the byte's magnitude moves right, and the power of two, twice

template <>
struct Placement<Half, Float8E4M3> {
  static constexpr int kShift = 1;
  static constexpr uint32_t kPower = 0x5c005c00u;  // 2 ** 8
};

template <>
struct Placement<BFloat16, Float8E4M3> {
  static constexpr int kShift = 4;
  static constexpr uint32_t kPower = 0x7b807b80u;  // 2 ** 120
};

template <>
struct Placement<BFloat16, Float8E5M2> {
  static constexpr int kShift = 3;
  static constexpr uint32_t kPower = 0x77807780u;  // 2 ** 112
};

// `pair` holds two bytes in the high bytes of its halves.
template <class Wide, class Narrow>
struct Widening {
  __device__ static uint32_t of(uint32_t pair) {
    using P = Placement<Wide, Narrow>;
    constexpr uint32_t kMagnitude = 0x7f007f00u >> P::kShift;
    return multiply_pairs<Wide>((pair & 0x80008000u) | (pair >> P::kShift & kMagnitude), P::kPower);
  }
};

template <>
struct Widening<Half, Float8E5M2> {
  __device__ static uint32_t of(uint32_t pair) { return pair; }  // the upper byte of a half
};

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890

__device__ inline uint32_t convert_e4m3(uint32_t pair) {
  uint32_t result;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;"
      : "=r"(result)
      : "h"(static_cast<uint16_t>(select_bytes(pair, 0, 0x4431))));
  return result;
}

__device__ inline uint32_t halves_to_bfloat16(uint32_t pair) {
  float low, high;
  asm("cvt.f32.f16 %0, %1;" : "=f"(low) : "h"(static_cast<uint16_t>(pair & 0xffffu)));
  asm("cvt.f32.f16 %0, %1;" : "=f"(high) : "h"(static_cast<uint16_t>(pair >> 16)));
  return pack<BFloat16>(low, high);
}

template <>
struct Widening<Half, Float8E4M3> {
  __device__ static uint32_t of(uint32_t pair) { return convert_e4m3(pair); }
};

template <>
struct Widening<BFloat16, Float8E4M3> {
  __device__ static uint32_t of(uint32_t pair) { return halves_to_bfloat16(convert_e4m3(pair)); }
};

template <>
struct Widening<BFloat16, Float8E5M2> {
  __device__ static uint32_t of(uint32_t pair) { return halves_to_bfloat16(pair); }
};

#endif

// Bytes kLow and kHigh of `word` as a pair.
template <class Wide, class Narrow, int kLow, int kHigh>
__device__ inline uint32_t widen_bytes(uint32_t word) {
  return Widening<Wide, Narrow>::of(select_bytes(word, 0, 0x0404 | kLow << 4 | kHigh << 12));
}

}  // namespace vllm_lite::cuda
