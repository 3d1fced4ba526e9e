#include "cpu/argmax.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <mutex>
#include <vector>

#include "cpu/isa.h"
#include "cpu/thread_pool.h"

namespace vllm_lite {
namespace {

constexpr int64_t kStripPanels = 4;
constexpr int64_t kStripOutputs = kStripPanels * kPanel;
// Ranges of strips per thread, so that one slow core delays the others little.
constexpr int64_t kNumRanges = 64;

// A range's search and the outputs of its current strip; thread-local.
struct Search {
  std::vector<float> outputs;
  std::vector<float> largest;
  std::vector<int64_t> tokens;

  void start(int64_t num_rows) {
    outputs.resize(num_rows * kStripOutputs);
    largest.assign(num_rows, -std::numeric_limits<float>::infinity());
    tokens.assign(num_rows, 0);
  }
};

// Ranges end in any order: among ties the first output wins, and a NaN stays.
void take_largest(const Search& from, int64_t num_rows, const LargestOfRows& to) {
  for (int64_t r = 0; r < num_rows; ++r) {
    if (std::isnan(to.largest[r])) continue;
    const float value = from.largest[r];
    const bool is_first = value == to.largest[r] && from.tokens[r] < to.tokens[r];
    if (std::isnan(value) || value > to.largest[r] || is_first) {
      to.largest[r] = value;
      to.tokens[r] = from.tokens[r];
    }
  }
}

// Searches `num_outputs` outputs, numbered from first_output on. multiply(panel, count,
// out) writes those of `count` panels to rows kStripOutputs apart.
template <class Multiply>
void search(int64_t num_rows, int64_t first_output, int64_t num_outputs, Multiply&& multiply,
            const LargestOfRows& found) {
  const KernelTable& table = kernels();
  const int64_t num_strips = ceil_divide(num_outputs, kStripOutputs);
  std::mutex mutex;
  parallel_for(num_strips, ceil_divide(num_strips, kNumRanges), [&](int64_t begin, int64_t end) {
    thread_local Search mine;
    mine.start(num_rows);
    for (int64_t strip = begin; strip < end; ++strip) {
      const int64_t output = strip * kStripOutputs;
      const int64_t count = std::min(kStripOutputs, num_outputs - output);
      multiply(output / kPanel, count, mine.outputs.data());
      table.find_largest({mine.outputs.data(), kStripOutputs, count, first_output + output,
                          mine.largest.data(), mine.tokens.data()},
                         0, num_rows);
    }
    const std::lock_guard lock(mutex);
    take_largest(mine, num_rows, found);
  });
}

void start(int64_t num_rows, const LargestOfRows& found) {
  std::fill_n(found.largest, num_rows, -std::numeric_limits<float>::infinity());
  std::fill_n(found.tokens, num_rows, 0);
}

void finish(int64_t num_rows, const LargestOfRows& found) {
  for (int64_t r = 0; r < num_rows; ++r) {
    if (!std::isfinite(found.largest[r])) found.tokens[r] = 0;
  }
}

const char* rows_from(const void* x, DType dtype, int64_t elements) {
  return static_cast<const char*>(x) + elements * bytes_of(dtype);
}

}  // namespace

void linear_argmax(const Linear& p, int64_t num_rows, const LargestOfRows& found) {
  const KernelTable& table = kernels();
  const int64_t panel_bytes = packed_panel_bytes(p.dtype, p.num_inputs);
  start(num_rows, found);
  for (int64_t row = 0; row < num_rows; row += kRowsPerBlock) {
    const int64_t count = std::min(kRowsPerBlock, num_rows - row);
    Linear block = p;
    block.x = rows_from(p.x, p.dtype, row * p.x_stride);
    block.out_dtype = DType::kFloat32;
    block.out_stride = kStripOutputs;
    const auto multiply = [&](int64_t panel, int64_t num_outputs, float* out) {
      Linear strip = block;
      strip.packed_weight = static_cast<const char*>(p.packed_weight) + panel * panel_bytes;
      strip.bias = p.bias == nullptr ? nullptr : p.bias + panel * kPanel;
      strip.num_outputs = num_outputs;
      strip.out = out;
      table.linear(strip, 0, count, 0, ceil_divide(num_outputs, kPanel));
    };
    search(count, 0, p.num_outputs, multiply, {found.largest + row, found.tokens + row});
  }
  finish(num_rows, found);
}

void quantized_linear_argmax(const QuantizedLinear& p, int64_t num_rows,
                             const LargestOfRows& found) {
  const KernelTable& table = kernels();
  start(num_rows, found);
  for (int64_t row = 0; row < num_rows; row += kQuantizedRows) {
    const int64_t count = std::min(kQuantizedRows, num_rows - row);
    const QuantizedGroup* groups = rounded_rows(p, row, count);
    for (int64_t i = 0; i < p.num_parts; ++i) {
      const QuantizedPart& part = p.parts[i];
      const int64_t panel_bytes =
          table.quantized_panel_bytes(static_cast<int>(part.ggml_type), p.num_inputs);
      const auto multiply = [&](int64_t panel, int64_t num_outputs, float* out) {
        const QuantizedPart strip = {part.ggml_type, part.packed + panel * panel_bytes, 0,
                                     num_outputs};
        const float* bias =
            p.bias == nullptr ? nullptr : p.bias + part.first_output + panel * kPanel;
        table.quantized_product({groups, count, p.num_inputs, &strip, 1, bias, DType::kFloat32, out,
                                 kStripOutputs},
                                0, ceil_divide(num_outputs, kPanel));
      };
      search(count, part.first_output, part.num_outputs, multiply,
             {found.largest + row, found.tokens + row});
    }
  }
  finish(num_rows, found);
}

}  // namespace vllm_lite
