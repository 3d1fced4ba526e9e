// Products of which only the largest output of each row is wanted.
//
// Outputs are made a strip at a time, looked at while they lie in the nearest caches, and forgotten.
// They are those of the whole product, bit by bit.
#pragma once

#include "cpu/ops.h"

namespace vllm_lite {

// Of each row the largest output, and the first place where it is. `largest` is not finite, and
// `tokens` 0, where an output is no number or infinite, or all are minus infinity.
struct LargestOfRows {
  float* largest;   // [T]
  int64_t* tokens;  // [T]
};

// What `out`, its type and its stride are in the product does not matter.
void linear_argmax(const Linear& p, int64_t num_rows, const LargestOfRows& found);
void quantized_linear_argmax(const QuantizedLinear& p, int64_t num_rows,
                             const LargestOfRows& found);

}  // namespace vllm_lite
