// The largest output of each row of a linear layer, for greedy sampling.
//
// Outputs are computed a strip at a time, searched while they are in cache, and dropped.
// They equal the full layer's outputs bit for bit.
#pragma once

#include "cpu/ops.h"

namespace vllm_lite {

// Each row's largest output and its first index. `largest` is not finite, and
// `tokens` 0, if an output is NaN or infinite, or all are minus infinity.
struct LargestOfRows {
  float* largest;   // [T]
  int64_t* tokens;  // [T]
};

// `out`, its type and its stride are ignored.
void linear_argmax(const Linear& p, int64_t num_rows, const LargestOfRows& found);
void quantized_linear_argmax(const QuantizedLinear& p, int64_t num_rows,
                             const LargestOfRows& found);

}  // namespace vllm_lite
