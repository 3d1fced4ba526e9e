// Powers of two by polynomials: fine, or rough enough for results of 8 bits.
#pragma once

#include "cpu/kernels/simd.h"

namespace vllm_lite::VLLM_LITE_ISA {
namespace {

constexpr float kLog2E = 1.44269504088896341f;

// 1 + c[0] x + c[1] x^2 + ... is 2^x for |x| <= 1/2, to 3e-6 or 2e-9 of it.
constexpr float kRoughPowers[] = {6.9312419323e-1f, 2.4024098618e-1f, 5.5906426208e-2f,
                                  9.5828532207e-3f};
constexpr float kFinePowers[] = {6.9314720286e-1f, 2.4022647914e-1f, 5.5503324707e-2f,
                                 9.6184373585e-3f, 1.3398874588e-3f, 1.5353362055e-4f};

// 2^x for x <= 0, exactly 1 at 0; 0 below -126, where results would be subnormal: processors take
// hundreds of cycles for one. Vectors go side by side, as one alone waits for itself.
template <int kDegree, int N>
inline void raise_two(Vec (&x)[N], const float (&powers)[kDegree]) {
  Vec whole[N], rest[N], sum[N];
#if !defined(__AVX512F__)
  constexpr float kRounder = 12582912.0f;  // 1.5 * 2^23
  for (int i = 0; i < N; ++i) x[i] = max_lanes(x[i], broadcast(-127.0f));
  for (int i = 0; i < N; ++i) whole[i] = x[i] + kRounder;
  for (int i = 0; i < N; ++i) rest[i] = x[i] - (whole[i] - kRounder);
#else
  for (int i = 0; i < N; ++i) whole[i] = _mm512_maskz_roundscale_ps(0xffff, x[i], 0);
  for (int i = 0; i < N; ++i) rest[i] = x[i] - whole[i];
#endif
  for (int i = 0; i < N; ++i) sum[i] = broadcast(powers[kDegree - 1]);
#pragma GCC unroll 8
  for (int k = kDegree - 2; k >= 0; --k) {
    for (int i = 0; i < N; ++i) sum[i] = multiply_add(sum[i], rest[i], broadcast(powers[k]));
  }
  for (int i = 0; i < N; ++i) sum[i] = multiply_add(sum[i], rest[i], broadcast(1.0f));
  for (int i = 0; i < N; ++i) {
#if !defined(__AVX512F__)
    // The rounder is nothing but bits that the shift drops.
    const IntVec exponent = bit_cast<IntVec>(whole[i]) << 23;
    const Vec scaled = bit_cast<Vec>(bit_cast<IntVec>(sum[i]) + exponent);
    x[i] = x[i] < broadcast(-126.0f) ? Vec{} : scaled;
#else
    const __mmask16 is_normal = _mm512_cmp_ps_mask(x[i], broadcast(-126.0f), _CMP_NLT_UQ);
    x[i] = _mm512_maskz_scalef_ps(is_normal, sum[i], whole[i]);
#endif
  }
}

inline Vec power_of_two(Vec x) {
  Vec one[1] = {x};
  raise_two(one, kFinePowers);
  return one[0];
}
inline float power_of_two(float x) { return power_of_two(broadcast(x))[0]; }

}  // namespace
}  // namespace vllm_lite::VLLM_LITE_ISA
