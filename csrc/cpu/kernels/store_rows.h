// The end of a product: sums of a panel's outputs become rows of its result.
#pragma once

#include "cpu/kernels/simd.h"

namespace vllm_lite::VLLM_LITE_ISA {

template <class Out, class Product>
static inline void store_rows_as(const Product& p, int64_t row, int64_t output, int64_t num_rows,
                                 int64_t num_outputs, const float* sums) {
  Out* out = static_cast<Out*>(p.out) + row * p.out_stride + output;
  for (; num_rows > 0; --num_rows, out += p.out_stride, sums += kPanel) {
    for_each_vector(num_outputs, [&](int64_t i, int64_t count) {
      Vec sum = load(sums + i);
      if (p.bias != nullptr) sum += load_upto(p.bias + output + i, count);
      store_upto(out + i, sum, count);
    });
  }
}

// Adds the bias to num_rows rows of kPanel sums and writes the first num_outputs of each.
template <class Product>
static inline void store_rows(const Product& p, int64_t row, int64_t output, int64_t num_rows,
                              int64_t num_outputs, const float* sums) {
  if (p.out_dtype == DType::kBFloat16) {
    store_rows_as<BFloat16>(p, row, output, num_rows, num_outputs, sums);
  } else {
    store_rows_as<float>(p, row, output, num_rows, num_outputs, sums);
  }
}

}  // namespace vllm_lite::VLLM_LITE_ISA
