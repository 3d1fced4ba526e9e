#include "cpu/head_linear.h"

#include <algorithm>
#include <cstring>

#include "cpu/isa.h"
#include "cpu/ops.h"
#include "cpu/thread_pool.h"

namespace vllm_lite {
void head_linear(const HeadLinear& p, int64_t num_tokens) {
  const int64_t item = bytes_of(p.dtype);
  const int64_t out_head_stride = p.num_outputs + p.num_copied;
  const int64_t out_token_stride = p.num_heads * out_head_stride;
  const int64_t num_panels = ceil_divide(p.num_outputs, kPanel);
  const int64_t num_blocks = ceil_divide(num_tokens, kRowsPerBlock);
  const int64_t num_items = p.num_heads * num_blocks * num_panels;
  const int64_t products = std::max<int64_t>(
      1, std::min(num_tokens, kRowsPerBlock) * kPanel * p.num_inputs);
  const int64_t grain =
      std::clamp<int64_t>(kProductsOfPanels / products, 1, std::max<int64_t>(1, num_items / 8));
  const int64_t weight_bytes = packed_bytes(p.dtype, p.num_outputs, p.num_inputs);
  const KernelTable& table = kernels();
  // A head's panels of one block of rows, then those of its next block.
  parallel_spans(num_items, grain, [&](int64_t begin, int64_t end) {
    while (begin < end) {
      const int64_t head = begin / num_panels / num_blocks;
      const int64_t row = begin / num_panels % num_blocks * kRowsPerBlock;
      const int64_t end_row = std::min(row + kRowsPerBlock, num_tokens);
      const int64_t panel = begin % num_panels;
      const int64_t last = std::min(num_panels, panel + end - begin);
      const char* x = static_cast<const char*>(p.x) + head * p.x_head_stride * item;
      char* out = static_cast<char*>(p.out) + head * out_head_stride * item;
      const char* weight = static_cast<const char*>(p.packed_weights) + head * weight_bytes;
      table.linear({p.dtype, x, p.x_token_stride, weight, nullptr, p.num_outputs, p.num_inputs,
                    p.dtype, out, out_token_stride},
                   row, end_row, panel, last);
      for (int64_t r = row; last == num_panels && p.num_copied > 0 && r < end_row; ++r) {
        std::memcpy(out + (r * out_token_stride + p.num_outputs) * item,
                    x + (r * p.x_token_stride + p.num_inputs) * item, p.num_copied * item);
      }
      begin += last - panel;
    }
  });
}

}  // namespace vllm_lite
