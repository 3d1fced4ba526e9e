// The end of a GEMM: sums of a panel's outputs become rows of the result.
#pragma once

#include "cpu/kernels/simd.h"

namespace vllm_lite::VLLM_LITE_ISA {

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
      store_upto(out + i, sum, count);
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
