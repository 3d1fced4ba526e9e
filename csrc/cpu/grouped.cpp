#include <algorithm>
#include <bit>
#include <memory>
#include <stdexcept>
#include <string>

#include "cpu/isa.h"
#include "cpu/ops.h"
#include "cpu/thread_pool.h"

namespace vllm_lite {

float* row_buffer(int64_t count) {
  struct Buffer {
    std::unique_ptr<float[]> rows;
    int64_t size = 0;
  };
  thread_local Buffer buffer;
  if (buffer.size < count) {
    buffer.rows.reset();
    buffer.rows = std::make_unique_for_overwrite<float[]>(count);
    buffer.size = count;
  }
  return buffer.rows.get();
}

namespace {

// Elements that one thread looks up in some microseconds.
constexpr int64_t kElementsPerRange = 32 * 1024;

const char* row_of(const void* rows, DType dtype, int64_t stride, int64_t row) {
  return static_cast<const char*>(rows) + row * stride * bytes_of(dtype);
}

WidenRows widening_of(const GroupedLinear& p, int64_t row, float* rows) {
  return {p.dtype, row_of(p.x, p.dtype, p.x_stride, row), p.x_stride, p.weight, rows,
          p.rounding};
}

// Whether what rows are rounded to are bfloat16's numbers: of given values not all may be.
bool rounds_to_brief(const RowRounding& by) {
  for (int64_t i = 0; by.values != nullptr && i < by.num_values; ++i) {
    if (std::bit_cast<uint32_t>(by.values[i]) & 0xffffu) return false;
  }
  return true;
}

int64_t count_panels(const GroupedWeight& weight) {
  return ceil_divide(weight.num_outputs, kPanel);
}

}  // namespace

GroupedProduct product_of(const GroupedLinear& p, int64_t row, int64_t count, const float* x) {
  void* out = const_cast<char*>(row_of(p.out, p.out_dtype, p.out_stride, row));
  const RowRounding& by = p.rounding;
  const bool are_codes = has_codes(by, *p.weight);
  const bool are_products = by.group_size == 0 || are_powers(by.scales);
  const bool are_brief =
      (are_codes || (p.dtype == DType::kBFloat16 && are_products)) && rounds_to_brief(by);
  return {x,           are_brief, are_codes ? by : RowRounding{}, count, p.weight, p.bias,
          p.out_dtype, out,       p.out_stride};
}

void grouped_linear(const GroupedLinear& p, int64_t num_rows, const BesideProduct& beside) {
  check(beside, num_rows);
  const KernelTable& table = kernels();
  const GroupedWeight& weight = *p.weight;
  const int64_t num_panels = count_panels(weight);
  const auto& before = beside.before;
  const int64_t work = weight.num_inputs + (before ? work_of_row(*before) : 0);
  for (int64_t row = 0; row < num_rows; row += kGroupedRows) {
    const int64_t count = std::min(kGroupedRows, num_rows - row);
    const WidenRows widening =
        widening_of(p, row, row_buffer(std::min(kGroupedRows, num_rows) * wide_row_floats(weight)));
    parallel_rows(count, work, [&](int64_t begin, int64_t end) {
      if (before) run_rows(*before, row + begin, row + end);
      table.widen_rows(widening, begin, end);
    });
    const GroupedProduct product = product_of(p, row, count, widening.rows);
    // At least eight ranges, so that one slow core delays the others little.
    const int64_t grain = std::clamp<int64_t>(panels_of_range(count, weight.num_inputs), 1,
                                              ceil_divide(num_panels, 8));
    parallel_spans(num_panels, grain, [&](int64_t begin, int64_t end) {
      table.grouped_product(product, begin, end);
    });
  }
  run_after(beside, num_rows);
}

void linear_rows(const GroupedLinear& p, int64_t begin, int64_t end) {
  const KernelTable& table = kernels();
  float* rows = row_buffer(std::min(kGroupedRows, end - begin) * wide_row_floats(*p.weight));
  for (int64_t row = begin; row < end; row += kGroupedRows) {
    const int64_t count = std::min(kGroupedRows, end - row);
    table.widen_rows(widening_of(p, row, rows), 0, count);
    table.grouped_product(product_of(p, row, count, rows), 0, count_panels(*p.weight));
  }
}

void grouped_lookup(const GroupedLookup& p, int64_t num_ids) {
  const GroupedWeight& weight = *p.weight;
  for (int64_t i = 0; p.first_row < 0 && i < num_ids; ++i) {
    if (p.ids[i] < 0 || p.ids[i] >= weight.num_outputs) {
      throw std::out_of_range("id " + std::to_string(p.ids[i]) + " is outside the table of " +
                              std::to_string(weight.num_outputs) + " rows");
    }
  }
  const KernelTable& table = kernels();
  parallel_for(num_ids, std::max<int64_t>(1, kElementsPerRange / (16 * weight.num_inputs)),
               [&](int64_t begin, int64_t end) { table.grouped_lookup(p, begin, end); });
}

}  // namespace vllm_lite
