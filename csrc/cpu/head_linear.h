// Linear layers of heads: each head's row by a weight of its own.
#pragma once

#include <cstdint>

#include "cpu/kernel_table.h"

namespace vllm_lite {

struct HeadLinear {
  DType dtype;
  const void* x;  // [T, H, N + R]
  int64_t x_token_stride;
  int64_t x_head_stride;
  const void* packed_weights;  // of each head [M, N], one after another
  void* out;                   // [T, H, M + R], dense
  int64_t num_heads;           // H
  int64_t num_outputs;         // M
  int64_t num_inputs;          // N
  int64_t num_copied;          // R, numbers that follow the inputs and, unchanged, the outputs
};

// Every row equals what linear() computes.
void head_linear(const HeadLinear& p, int64_t num_tokens);

}  // namespace vllm_lite
