// Activations on vectors. For elementwise.cpp and state.cpp only.
#pragma once

#include "cpu/kernels/powers.h"

namespace vllm_lite::VLLM_LITE_ISA {
namespace {

inline Vec sum_of_powers(Vec x, const float (&factors)[9]) {
  Vec sum = broadcast(factors[8]);
#pragma GCC unroll 8
  for (int i = 7; i >= 0; --i) sum = multiply_add(sum, x, broadcast(factors[i]));
  return sum;
}

// x times the normal distribution function: to some units in the last place of the result,
// however small. Its tail beyond |x| is e^(-x^2 / 2) t P(t), t = 1 / (1 + 0.3 |x| / sqrt 2),
// with P fitted to 2e-8. |x| is split in two, since a rounded square would lose accuracy.
inline Vec gelu(Vec x) {
  constexpr float kFactors[] = {8.45950544e-2f,  8.53424072e-2f, 7.42630213e-2f,
                                1.07143901e-1f,  -4.66617011e-2f, 2.72998184e-1f,
                                -2.55455524e-1f, 2.42478460e-1f, -6.47037998e-2f};
  constexpr float kFarthest = 16.0f;  // nothing is beyond
  const Vec distance =
      min_lanes(bit_cast<Vec>(bit_cast<BitsVec>(x) & 0x7fffffffu), broadcast(kFarthest));
  const Vec head = bit_cast<Vec>(bit_cast<BitsVec>(distance) & 0xfffff000u);
  const Vec tail = (distance - head) * (distance + head) * -0.5f;
  Vec power = broadcast(1.0f / 6.0f);
  power = multiply_add(power, tail, broadcast(0.5f));
  power = multiply_add(power, tail, broadcast(1.0f));
  power = multiply_add(power, tail, broadcast(1.0f)) * exponential(head * head * -0.5f);
  const Vec t = 1.0f / multiply_add(distance, broadcast(0.212132034f), broadcast(1.0f));
  const Vec beyond = sum_of_powers(t, kFactors) * t * power;
  return x * (x < Vec{} ? beyond : 1.0f - beyond);
}

// The same to 2e-4 of the result, with P fitted to 3e-5, for x of 8 bits: its square is exact.
inline Vec rough_gelu(Vec x) {
  constexpr float kFactors[] = {1.49060693e-1f, 1.57737195e-1f, 8.35537304e-2f, 2.00295038e-1f,
                                -9.06488089e-2f};
  constexpr float kFarthest = 16.0f;  // nothing is beyond
  const Vec distance =
      min_lanes(bit_cast<Vec>(bit_cast<BitsVec>(x) & 0x7fffffffu), broadcast(kFarthest));
  Vec power[1] = {distance * distance * (-0.5f * kLog2E)};
  raise_two(power, kRoughPowers);
  const Vec reach = multiply_add(distance, broadcast(0.375f), broadcast(1.0f));
#if defined(__AVX512F__)
  const Vec t = _mm512_maskz_rcp14_ps(0xffff, reach);
#else
  const Vec t = 1.0f / reach;
#endif
  Vec sum = broadcast(kFactors[4]);
#pragma GCC unroll 4
  for (int i = 3; i >= 0; --i) sum = multiply_add(sum, t, broadcast(kFactors[i]));
  const Vec beyond = sum * (t * power[0]);
  return x * (x < Vec{} ? beyond : 1.0f - beyond);
}

// (1 + tanh y) / 2 is the logistic function of 2 y.
inline Vec gelu_tanh(Vec x) {
  const Vec bent = 1.59576912f * multiply_add(x * x * x, broadcast(0.044715f), x);
  return x / (1.0f + exponential(-bent));
}

// Near zero by the series of Cephes' tanhf, since the powers of e would cancel out.
inline Vec tanh(Vec x) {
  const Vec square = x * x;
  Vec sum = broadcast(-5.70498872745e-3f);
  sum = multiply_add(sum, square, broadcast(2.06390887954e-2f));
  sum = multiply_add(sum, square, broadcast(-5.37397155531e-2f));
  sum = multiply_add(sum, square, broadcast(1.33314422036e-1f));
  sum = multiply_add(sum, square, broadcast(-3.33332819422e-1f));
  const Vec far = 1.0f - 2.0f / (1.0f + exponential(2.0f * x));
  return square < 0.39f ? multiply_add(sum * square, x, x) : far;
}

inline Vec sigmoid(Vec x) { return 1.0f / (1.0f + exponential(-x)); }

// The natural logarithm of 1 <= x <= 2, to some units in the last place (Cephes' polynomial).
inline Vec log_of_small(Vec x) {
  constexpr float kFactors[] = {3.3333331174e-1f,  -2.4999993993e-1f, 2.0000714765e-1f,
                                -1.6668057665e-1f, 1.4249322787e-1f,  -1.2420140846e-1f,
                                1.1676998740e-1f,  -1.1514610310e-1f, 7.0376836292e-2f};
  constexpr float kLn2 = 0.69314718056f;
  const auto is_large = x > 1.41421356f;
  const Vec m = (is_large ? x * 0.5f : x) - 1.0f;
  const Vec cubed = sum_of_powers(m, kFactors) * m * m * m;
  return (is_large ? broadcast(kLn2) : Vec{}) + (m + (cubed - 0.5f * m * m));
}

// log(1 + e^x), as max(x, 0) + log(1 + e^-|x|); the logarithm is scaled by what rounding 1 + e^-|x|
// lost.
inline Vec softplus(Vec x) {
  const Vec power = exponential(bit_cast<Vec>(bit_cast<BitsVec>(x) | 0x80000000u));
  const Vec shifted = 1.0f + power, kept = shifted - 1.0f;
  const Vec logarithm = log_of_small(shifted) * (power / (kept == Vec{} ? 1.0f + Vec{} : kept));
  return max_lanes(x, Vec{}) + (kept == Vec{} ? power : logarithm);
}

inline Vec relu(Vec x) { return max_lanes(x, Vec{}); }

// Equation 4 of arXiv:2411.13010; e^y - 1 - y is summed where the difference would lose digits.
inline Vec xielu(Vec x, const XieluCurve& curve) {
  constexpr float kFactors[] = {5.0e-1f,        1.66666667e-1f, 4.16666667e-2f,
                                8.33333333e-3f, 1.38888889e-3f, 1.98412698e-4f,
                                2.48015873e-5f, 2.75573192e-6f, 2.75573192e-7f};
  const Vec y = min_lanes(x, broadcast(curve.eps));
  const Vec beyond = exponential(y) - 1.0f - y;
  const Vec bent = y < -1.0f ? beyond : y * y * sum_of_powers(y, kFactors);
  const Vec below = curve.alpha_n * (bent + (y - x));
  return multiply_add(x, broadcast(curve.beta), x > Vec{} ? curve.alpha_p * x * x : below);
}

// Calls body(the vector function of `kind`), unless it has numbers of its own.
template <class Body>
void with_activation(ActivationKind kind, Body&& body) {
  switch (kind) {
    case ActivationKind::kSilu: return body([](Vec x) { return silu(x); });
    case ActivationKind::kGelu: return body([](Vec x) { return gelu(x); });
    case ActivationKind::kGeluTanh: return body([](Vec x) { return gelu_tanh(x); });
    case ActivationKind::kGeluQuick:
      return body([](Vec x) { return x / (1.0f + exponential(-1.702f * x)); });
    case ActivationKind::kRelu: return body([](Vec x) { return relu(x); });
    case ActivationKind::kRelu2: return body([](Vec x) { return relu(x) * relu(x); });
    case ActivationKind::kTanh: return body([](Vec x) { return tanh(x); });
    case ActivationKind::kSigmoid: return body([](Vec x) { return sigmoid(x); });
    case ActivationKind::kXielu: return;
  }
}

}  // namespace
}  // namespace vllm_lite::VLLM_LITE_ISA
