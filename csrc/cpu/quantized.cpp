#include <algorithm>
#include <memory>
#include <stdexcept>
#include <string>

#include "cpu/isa.h"
#include "cpu/ops.h"
#include "cpu/thread_pool.h"

namespace vllm_lite {
namespace {

// Elements that one thread quantises, unpacks or copies in some microseconds.
constexpr int64_t kElementsPerRange = 32 * 1024;
// Multiply-adds of a range of panels: some tens of microseconds.
constexpr int64_t kProductsPerRange = 8 * 1024 * 1024;
// Weights of a range of panels: few rows are limited by reading weights.
constexpr int64_t kWeightsPerRange = 256 * 1024;

}  // namespace

QuantizedGroup* group_buffer(int64_t count) {
  struct Buffer {
    std::unique_ptr<QuantizedGroup[]> groups;
    int64_t size = 0;
  };
  thread_local Buffer buffer;
  if (buffer.size < count) {
    buffer.groups.reset();
    buffer.groups = std::make_unique_for_overwrite<QuantizedGroup[]>(count);
    buffer.size = count;
  }
  return buffer.groups.get();
}

namespace {

// Rows [row, row + count) of x, to be quantised to `groups`, and their product.
QuantizeRows rounding_of(const QuantizedLinear& p, int64_t row, int64_t count,
                         QuantizedGroup* groups) {
  const char* x = static_cast<const char*>(p.x) + row * p.x_stride * bytes_of(p.dtype);
  return {p.dtype, x, p.x_stride, groups, count, p.num_inputs};
}
QuantizedProduct product_of(const QuantizedLinear& p, int64_t row, int64_t count,
                            const QuantizedGroup* groups) {
  char* out = static_cast<char*>(p.out) + row * p.out_stride * bytes_of(p.out_dtype);
  return {groups, count, p.num_inputs, p.parts, p.num_parts, p.bias, p.out_dtype, out,
          p.out_stride};
}

}  // namespace

int64_t count_panels(const QuantizedPart* parts, int64_t num_parts) {
  int64_t count = 0;
  for (int64_t i = 0; i < num_parts; ++i) count += ceil_divide(parts[i].num_outputs, kPanel);
  return count;
}

int64_t panels_of_range(int64_t num_rows, int64_t num_inputs) {
  const int64_t weights = kPanel * num_inputs;
  return std::min(kWeightsPerRange / weights, kProductsPerRange / (num_rows * weights));
}

int64_t packed_quantized_bytes(int ggml_type, int64_t num_outputs, int64_t num_inputs) {
  const int64_t panel_bytes = kernels().quantized_panel_bytes(ggml_type, num_inputs);
  if (panel_bytes < 0) {
    throw std::invalid_argument("rows of " + std::to_string(num_inputs) + " values of type " +
                                std::to_string(ggml_type) + " cannot be packed");
  }
  return ceil_divide(num_outputs, kPanel) * panel_bytes;
}

void pack_quantized(const PackQuantized& p) {
  const KernelTable& table = kernels();
  const int64_t panels = std::max<int64_t>(1, kElementsPerRange / (kPanel * p.num_inputs));
  parallel_for(ceil_divide(p.num_outputs, kPanel), panels,
               [&](int64_t begin, int64_t end) { table.pack_quantized(p, begin, end); });
}

const QuantizedGroup* rounded_rows(const QuantizedLinear& p, int64_t row, int64_t count,
                                   const BesideProduct& beside) {
  const KernelTable& table = kernels();
  QuantizedGroup* groups = group_buffer(count * (p.num_inputs / kQuantizedGroup));
  const QuantizeRows rounding = rounding_of(p, row, count, groups);
  const auto& before = beside.before;
  // Rows are quantised while they are in the cache of the core that wrote them.
  const int64_t work = p.num_inputs + (before ? work_of_row(*before) : 0);
  parallel_rows(count, work, [&](int64_t begin, int64_t end) {
    if (before) run_rows(*before, row + begin, row + end);
    table.quantize_rows(rounding, begin, end);
  });
  return groups;
}

void quantized_linear(const QuantizedLinear& p, int64_t num_rows, const BesideProduct& beside) {
  check(beside, num_rows);
  const KernelTable& table = kernels();
  const int64_t num_panels = count_panels(p.parts, p.num_parts);
  for (int64_t row = 0; row < num_rows; row += kQuantizedRows) {
    const int64_t count = std::min(kQuantizedRows, num_rows - row);
    const QuantizedGroup* groups = rounded_rows(p, row, count, beside);
    const QuantizedProduct product = product_of(p, row, count, groups);
    // At least eight ranges, so that one slow core delays the others little.
    const int64_t grain = std::clamp<int64_t>(panels_of_range(count, p.num_inputs), 1,
                                              ceil_divide(num_panels, 8));
    parallel_spans(num_panels, grain, [&](int64_t begin, int64_t end) {
      table.quantized_product(product, begin, end);
    });
  }
  run_after(beside, num_rows);
}

void linear_rows(const QuantizedLinear& p, int64_t begin, int64_t end) {
  const KernelTable& table = kernels();
  for (int64_t row = begin; row < end; row += kQuantizedRows) {
    const int64_t count = std::min(kQuantizedRows, end - row);
    QuantizedGroup* groups = group_buffer(count * (p.num_inputs / kQuantizedGroup));
    table.quantize_rows(rounding_of(p, row, count, groups), 0, count);
    table.quantized_product(product_of(p, row, count, groups), 0,
                            count_panels(p.parts, p.num_parts));
  }
}

void quantized_lookup(const QuantizedLookup& p, int64_t num_ids) {
  for (int64_t i = 0; p.first_row < 0 && i < num_ids; ++i) {
    if (p.ids[i] < 0 || p.ids[i] >= p.weight->num_outputs) {
      throw std::out_of_range("id " + std::to_string(p.ids[i]) + " is outside the table of " +
                              std::to_string(p.weight->num_outputs) + " rows");
    }
  }
  const KernelTable& table = kernels();
  parallel_for(num_ids, std::max<int64_t>(1, kElementsPerRange / (16 * p.num_inputs)),
               [&](int64_t begin, int64_t end) { table.quantized_lookup(p, begin, end); });
}

}  // namespace vllm_lite
