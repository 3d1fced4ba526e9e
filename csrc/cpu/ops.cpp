#include "cpu/ops.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>
#include <stdexcept>
#include <string>

#include "cpu/isa.h"
#include "cpu/thread_pool.h"

namespace vllm_lite {
namespace {

// Waking a helper costs a few microseconds, so ranges have at least this much work.
constexpr int64_t kElementsPerRange = 16 * 1024;

int64_t rows_per_range(int64_t elements_per_row, int64_t elements = kElementsPerRange) {
  return std::max<int64_t>(1, elements / std::max<int64_t>(elements_per_row, 1));
}

// Calls body(row, end_row, begin_panel, end_panel) on blocks of rows by ranges of panels of p's
// outputs; each panel costs `outputs` outputs.
template <class Body>
void each_range(const Linear& p, int64_t num_tokens, int64_t outputs, const BesideProduct& beside,
                Body&& body) {
  check(beside, num_tokens);
  if (beside.before) run(*beside.before, num_tokens);
  const int64_t num_panels = ceil_divide(p.num_outputs, kPanel);
  for (int64_t row = 0; row < num_tokens; row += kRowsPerBlock) {
    const int64_t end_row = std::min(row + kRowsPerBlock, num_tokens);
    const int64_t products = (end_row - row) * outputs * std::max<int64_t>(p.num_inputs, 1);
    // At least eight ranges, so that one slow core delays the others little.
    const int64_t grain =
        std::clamp<int64_t>(kProductsOfPanels / products, 1, ceil_divide(num_panels, 8));
    parallel_spans(num_panels, grain, [&](int64_t begin, int64_t end) {
      body(row, end_row, begin, end);
    });
  }
  run_after(beside, num_tokens);
}

// The second half of a gated layer, whose results multiply the first's.
Linear up_half(const Linear& p) {
  Linear up = p;
  up.packed_weight = static_cast<const char*>(p.packed_weight) +
                     ceil_divide(p.num_outputs, kPanel) * packed_panel_bytes(p.dtype, p.num_inputs);
  if (p.bias != nullptr) up.bias = p.bias + p.num_outputs;
  up.is_gated = true;
  return up;
}

}  // namespace

void embedding(const Embedding& p, int64_t num_tokens) {
  for (int64_t i = 0; p.first_row < 0 && i < num_tokens; ++i) {
    if (p.ids[i] < 0 || p.ids[i] >= p.num_rows) {
      throw std::out_of_range("token " + std::to_string(p.ids[i]) +
                              " is outside the embedding of " + std::to_string(p.num_rows) +
                              " rows");
    }
  }
  parallel_for(num_tokens, rows_per_range(p.row_bytes), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t row = p.ids[i] - std::max<int64_t>(p.first_row, 0);
      char* out = static_cast<char*>(p.out) + i * p.row_bytes;
      if (row < 0 || row >= p.num_rows) {
        std::memset(out, 0, p.row_bytes);
      } else {
        std::memcpy(out, static_cast<const char*>(p.rows) + row * p.row_bytes, p.row_bytes);
      }
    }
  });
}

void encoder_embedding(const EncoderEmbedding& p, int64_t num_tokens) {
  const auto check = [&](const char* what, int64_t row, int64_t num_rows) {
    if (row >= 0 && row < num_rows) return;
    throw std::out_of_range(what + std::to_string(row) + " is outside the table of " +
                            std::to_string(num_rows) + " rows");
  };
  for (int64_t i = 0; i < num_tokens; ++i) {
    check("token ", p.ids[i], p.num_words * p.num_types);
    if (p.places != nullptr) check("position ", p.positions[i], p.num_places);
  }
  parallel_rows(num_tokens, 4 * p.size,
                [&](int64_t begin, int64_t end) { kernels().encoder_embedding(p, begin, end); });
}

void segment_sum(const SegmentSum& p, int64_t num_segments, int64_t num_rows) {
  for (int64_t r = 0; r < num_segments; ++r) {
    if (p.starts[r] < 0 || p.starts[r + 1] < p.starts[r] || p.starts[r + 1] > num_rows) {
      throw std::out_of_range("query_start_loc is not an ascending list of rows");
    }
  }
  const int64_t rows = num_rows / std::max<int64_t>(num_segments, 1) + 1;
  parallel_for(num_segments, rows_per_range(rows * p.size),
               [&](int64_t begin, int64_t end) { kernels().segment_sum(p, begin, end); });
}

void apply_token_mask(const TokenMask& p, int64_t num_rows, int64_t num_masks) {
  for (int64_t i = 0; i < num_masks; ++i) {
    if (p.rows[i] < 0 || p.rows[i] >= num_rows) {
      throw std::out_of_range("row " + std::to_string(p.rows[i]) + " is outside the logits of " +
                              std::to_string(num_rows) + " rows");
    }
  }
  const KernelTable& table = kernels();
  const int64_t num_words = ceil_divide(p.vocab_size, kMaskWord);
  parallel_for(num_masks * ceil_divide(num_words, kWordsPerPart), 1,
               [&](int64_t begin, int64_t end) { table.apply_token_mask(p, begin, end); });
}

int64_t packed_bytes(DType dtype, int64_t num_outputs, int64_t num_inputs) {
  return ceil_divide(num_outputs, kPanel) * packed_panel_bytes(dtype, num_inputs);
}

void pack_linear(const PackLinear& p) {
  const KernelTable& table = kernels();
  const int64_t first = p.first_output / kPanel;
  const int64_t count = ceil_divide(p.first_output + p.num_outputs, kPanel) - first;
  std::atomic<uint32_t> largest = 0;
  parallel_for(count, rows_per_range(kPanel * p.num_inputs), [&](int64_t begin, int64_t end) {
    const uint32_t found = table.pack_linear(p, first + begin, first + end);
    uint32_t before = largest;
    while (before < found && !largest.compare_exchange_weak(before, found)) {
    }
  });
  if (p.largest) *p.largest = std::bit_cast<float>(largest.load());
}

void linear(const Linear& p, int64_t num_tokens, const BesideProduct& beside) {
  const KernelTable& table = kernels();
  each_range(p, num_tokens, kPanel, beside,
             [&](int64_t row, int64_t end_row, int64_t begin, int64_t end) {
               table.linear(p, row, end_row, begin, end);
             });
}

void linear_rows(const Linear& p, int64_t begin, int64_t end) {
  kernels().linear(p, begin, end, 0, ceil_divide(p.num_outputs, kPanel));
}

void gated_linear_rows(const Linear& p, int64_t begin, int64_t end) {
  linear_rows(p, begin, end);
  linear_rows(up_half(p), begin, end);
}

void gated_linear(const Linear& p, int64_t num_tokens, const BesideProduct& beside) {
  const KernelTable& table = kernels();
  const Linear up = up_half(p);
  // A range's gates are still in its core's cache when the second half needs them.
  each_range(p, num_tokens, 2 * kPanel, beside,
             [&](int64_t row, int64_t end_row, int64_t begin, int64_t end) {
               table.linear(p, row, end_row, begin, end);
               table.linear(up, row, end_row, begin, end);
             });
}

const uint32_t* ggml_books[kMostBooks];

GgmlBlock ggml_block(int ggml_type) {
  switch (ggml_type) {
    case kGgmlF32: return {16, 64};
    case kGgmlF16: return {16, 32};
    case kGgmlBF16: return {16, 32};
    case kGgmlQ4_0: return {32, 18};
    case kGgmlQ4_1: return {32, 20};
    case kGgmlQ5_0: return {32, 22};
    case kGgmlQ5_1: return {32, 24};
    case kGgmlQ8_0: return {32, 34};
    case kGgmlQ2_K: return {256, 84};
    case kGgmlQ3_K: return {256, 110};
    case kGgmlQ4_K: return {256, 144};
    case kGgmlQ5_K: return {256, 176};
    case kGgmlQ6_K: return {256, 210};
    case kGgmlIQ4_NL: return {32, 18};
    case kGgmlIQ2_XXS: return {256, 66};
    case kGgmlIQ2_XS: return {256, 74};
    case kGgmlIQ3_XXS: return {256, 98};
    case kGgmlIQ1_S: return {256, 50};
    case kGgmlIQ3_S: return {256, 110};
    case kGgmlIQ2_S: return {256, 82};
    case kGgmlIQ4_XS: return {256, 136};
    case kGgmlIQ1_M: return {256, 56};
    case kGgmlTQ1_0: return {256, 54};
    case kGgmlTQ2_0: return {256, 66};
    case kGgmlMXFP4: return {32, 17};
    case kGgmlNVFP4: return {64, 36};
    case kGgmlQ1_0: return {128, 18};
    case kGgmlQ2_0: return {64, 18};
    default:
      throw std::invalid_argument("GGUF tensor type " + std::to_string(ggml_type) +
                                  " is not supported");
  }
}

void dequantize(const uint8_t* blocks, int ggml_type, void* out, DType dtype, int64_t size) {
  const GgmlBlock block = ggml_block(ggml_type);
  const Dequantize p = {ggml_type, dtype, blocks, block.elements, block.bytes, out, size};
  const KernelTable& table = kernels();
  parallel_for((size + block.elements - 1) / block.elements, rows_per_range(block.elements),
               [&](int64_t begin, int64_t end) { table.dequantize(p, begin, end); });
}

}  // namespace vllm_lite
