// The end of a GEMM: sums of a panel's outputs become rows of the result.
#pragma once

#include "cpu/kernels/simd.h"

namespace vllm_lite::VLLM_LITE_ISA {

// Stores sums. AVX512-BF16's own instruction flushes subnormal ones to zero, as its products do.
static inline void store_sums(float* to, Vec v, int64_t count) { store_upto(to, v, count); }
static inline void store_sums(BFloat16* to, Vec v, int64_t count) {
#if defined(__AVX512BF16__)
  const __m256i bits = bit_cast<__m256i>(_mm512_cvtneps_pbh(v));
  if (count == kLanes) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), bits);
  } else {
    _mm256_mask_storeu_epi16(to, static_cast<__mmask16>((1u << count) - 1), bits);
  }
#else
  store_upto(to, v, count);
#endif
}

static inline bool is_gated(const Linear& p) { return p.is_gated; }
static inline bool is_gated(const QuantizedProduct&) { return false; }
static inline bool is_gated(const GroupedProduct&) { return false; }

template <class Out, int64_t kStride, class Product>
static inline void store_rows_as(const Product& p, int64_t row, int64_t output, int64_t num_rows,
                                 int64_t num_outputs, const float* sums) {
  Out* out = static_cast<Out*>(p.out) + row * p.out_stride + output;
  for (; num_rows > 0; --num_rows, out += p.out_stride, sums += kStride) {
    for_each_vector(num_outputs, [&](int64_t i, int64_t count) {
      Vec sum = load(sums + i);
      if (p.bias != nullptr) sum += load_upto(p.bias + output + i, count);
      if (is_gated(p)) {
        sum = rounded_to(out, silu(load_upto(out + i, count))) * rounded_to(out, sum);
      }
      store_sums(out + i, sum, count);
    });
  }
}

// Adds the bias to num_rows rows of kStride sums and writes the first num_outputs of each.
template <int64_t kStride = kPanel, class Product>
static inline void store_rows(const Product& p, int64_t row, int64_t output, int64_t num_rows,
                              int64_t num_outputs, const float* sums) {
  if (p.out_dtype == DType::kBFloat16) {
    store_rows_as<BFloat16, kStride>(p, row, output, num_rows, num_outputs, sums);
  } else {
    store_rows_as<float, kStride>(p, row, output, num_rows, num_outputs, sums);
  }
}

}  // namespace vllm_lite::VLLM_LITE_ISA
