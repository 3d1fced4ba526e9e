#include "cpu/experts.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <vector>

#include "cpu/isa.h"
#include "cpu/ops.h"
#include "cpu/thread_pool.h"

namespace vllm_lite {
namespace {

// Rows [begin, end) of the pairs by expert, all of one expert.
struct Block {
  int64_t expert, begin, end;
};

// Sorts the pairs of a token and a choice by expert, stably: writes
// each pair's place. Returns each expert's places in blocks of at most rows_per_block.
std::vector<Block> sort_pairs(const Experts& p, int64_t num_tokens, int64_t rows_per_block) {
  std::vector<int32_t> next(p.num_experts + 1);
  const int64_t num_pairs = num_tokens * p.top_k;
  const auto local = [&](int64_t pair) {
    const int64_t id = p.ids[pair] - p.first_expert;
    return 0 <= id && id < p.num_experts ? id : -1;
  };
  for (int64_t pair = 0; pair < num_pairs; ++pair) {
    if (const int64_t expert = local(pair); expert >= 0) ++next[expert + 1];
  }
  std::vector<Block> blocks;
  for (int64_t e = 0; e < p.num_experts; ++e) {
    const int64_t begin = next[e], end = begin + next[e + 1];
    for (int64_t row = begin; row < end; row += rows_per_block) {
      blocks.push_back({e, row, std::min(row + rows_per_block, end)});
    }
    next[e + 1] = static_cast<int32_t>(end);
  }
  for (int64_t pair = 0; pair < num_pairs; ++pair) {
    const int64_t expert = local(pair);
    p.places[pair] = expert < 0 ? -1 : next[expert]++;
  }
  return blocks;
}

// Copies each token's row to the places of its choices, scaled where weights are of inputs.
void gather_rows(const Experts& p, int64_t num_tokens) {
  const int64_t row_bytes = p.size * bytes_of(p.dtype);
  const int64_t stride_bytes = p.x_stride * bytes_of(p.dtype);
  parallel_rows(num_tokens, p.size * p.top_k, [&](int64_t begin, int64_t end) {
    for (int64_t pair = begin * p.top_k; pair < end * p.top_k; ++pair) {
      if (p.places[pair] < 0) continue;
      char* row = static_cast<char*>(p.rows) + p.places[pair] * row_bytes;
      const char* x = static_cast<const char*>(p.x) + pair / p.top_k * stride_bytes;
      if (p.scales_inputs) {
        kernels().scaled_add({p.dtype, x, nullptr, nullptr, row, p.size, p.size, 0, p.size, 0,
                              p.weights[pair], 0.0f, INFINITY},
                             0, 1);
      } else {
        std::memcpy(row, x, row_bytes);
      }
    }
  });
}

// Calls body(block, begin_panel, end_panel) on ranges of at most `most` panels of all blocks, which
// threads take in turn.
template <class Body>
void each_range(std::span<const Block> blocks, int64_t num_panels, int64_t most, Body&& body) {
  const int64_t num_items = static_cast<int64_t>(blocks.size()) * num_panels;
  const int64_t grain =
      std::clamp<int64_t>(most, 1, std::max<int64_t>(1, ceil_divide(num_items, 8)));
  parallel_spans(num_items, grain, [&](int64_t begin, int64_t end) {
    while (begin < end) {
      const int64_t panel = begin % num_panels;
      const int64_t last = std::min(num_panels, panel + end - begin);
      body(blocks[begin / num_panels], panel, last);
      begin += last - panel;
    }
  });
}

int64_t count_rows(std::span<const Block> blocks) {
  return blocks.empty() ? 0 : blocks.back().end - blocks.front().begin;
}

// The average, rounded up.
int64_t rows_of_block(std::span<const Block> blocks) {
  return ceil_divide(count_rows(blocks), std::max<int64_t>(1, static_cast<int64_t>(blocks.size())));
}

// Multiplies every block by its expert's weight.
// With `is_gated` the weight's halves, whole panels each, are multiplied one after the other.
void multiply(const Linear& p, const ExpertWeight* weights, std::span<const Block> blocks,
              bool is_gated) {
  const int64_t num_panels = ceil_divide(p.num_outputs, kPanel);
  const int64_t outputs = kPanel * (is_gated ? 2 : 1);
  const int64_t products = std::max<int64_t>(1, rows_of_block(blocks) * outputs * p.num_inputs);
  const KernelTable& table = kernels();
  each_range(blocks, num_panels, kProductsOfPanels / products,
             [&](const Block& block, int64_t panel, int64_t last) {
               Linear part = p;
               part.packed_weight = weights[block.expert].data;
               part.bias = weights[block.expert].bias;
               table.linear(part, block.begin, block.end, panel, last);
               if (is_gated) {
                 if (part.bias != nullptr) part.bias += p.num_outputs;
                 part.packed_weight = static_cast<const char*>(part.packed_weight) +
                                      num_panels * packed_panel_bytes(p.dtype, p.num_inputs);
                 part.is_gated = true;
                 table.linear(part, block.begin, block.end, panel, last);
               }
             });
}

// As `multiply`, by weights that take rows in a form of their own: Form makes a block's rows, after
// `before`, if any, has made x, and multiplies them.
template <class Form>
void multiply_formed(const Linear& p, const ExpertWeight* weights, const RowRounding& rounding,
                     std::span<const Block> blocks, const RowOperation* before) {
  const int64_t num_blocks = static_cast<int64_t>(blocks.size()), rows = rows_of_block(blocks);
  const Form form(p, weights, rounding, count_rows(blocks));
  const int64_t work = p.num_inputs + (before == nullptr ? 0 : work_of_row(*before));
  parallel_rows(num_blocks, work * rows, [&](int64_t begin, int64_t end) {
    for (const Block& block : blocks.subspan(begin, end - begin)) {
      if (before != nullptr) run_rows(*before, block.begin, block.end);
      const char* x = static_cast<const char*>(p.x) + block.begin * p.x_stride * bytes_of(p.dtype);
      form.make_rows(block.expert, x, block.begin - blocks.front().begin, block.end - block.begin);
    }
  });
  int64_t num_panels = 0;
  for (const Block& block : blocks) {
    num_panels = std::max(num_panels, form.panels(block.expert));
  }
  const int64_t out_bytes = p.out_stride * bytes_of(p.out_dtype);
  each_range(blocks, num_panels, panels_of_range(rows, p.num_inputs),
             [&](const Block& block, int64_t panel, int64_t last) {
               form.multiply(block.expert, block.begin - blocks.front().begin,
                             block.end - block.begin,
                             static_cast<char*>(p.out) + block.begin * out_bytes, panel, last);
             });
}

struct QuantizedForm {
  const Linear& p;
  const ExpertWeight* weights;
  int64_t groups_of_row;
  QuantizedGroup* groups;  // a block's rows side by side

  QuantizedForm(const Linear& linear, const ExpertWeight* of_experts, const RowRounding&,
                int64_t num_rows)
      : p(linear),
        weights(of_experts),
        groups_of_row(linear.num_inputs / kQuantizedGroup),
        groups(group_buffer(num_rows * groups_of_row)) {}

  const QuantizedPart* parts(int64_t expert) const {
    return static_cast<const QuantizedPart*>(weights[expert].data);
  }
  int64_t panels(int64_t expert) const {
    return count_panels(parts(expert), weights[expert].num_parts);
  }
  void make_rows(int64_t, const void* x, int64_t first, int64_t count) const {
    kernels().quantize_rows(
        {p.dtype, x, p.x_stride, groups + first * groups_of_row, count, p.num_inputs}, 0, count);
  }
  void multiply(int64_t expert, int64_t first, int64_t count, void* out, int64_t begin,
                int64_t end) const {
    kernels().quantized_product({groups + first * groups_of_row, count, p.num_inputs, parts(expert),
                                 weights[expert].num_parts, weights[expert].bias, p.out_dtype, out,
                                 p.out_stride},
                                begin, end);
  }
};

// Groups of all experts have one size, and parts of one read the same rows.
struct GroupedForm {
  const Linear& p;
  const ExpertWeight* weights;
  const RowRounding& of_all;
  int64_t floats_of_row;
  float* rows;

  GroupedForm(const Linear& linear, const ExpertWeight* of_experts, const RowRounding& rounding,
              int64_t num_rows)
      : p(linear),
        weights(of_experts),
        of_all(rounding),
        floats_of_row(wide_row_floats(parts(0).front())),
        rows(row_buffer(num_rows * floats_of_row)) {}

  std::span<const GroupedWeight> parts(int64_t expert) const {
    return {static_cast<const GroupedWeight*>(weights[expert].data),
            static_cast<size_t>(weights[expert].num_parts)};
  }
  RowRounding rounding(int64_t expert) const {
    RowRounding own = of_all;
    if (own.scale != nullptr) own.scale += expert;
    if (own.zero != nullptr) own.zero += expert;
    return own;
  }
  int64_t panels(int64_t expert) const {
    int64_t count = 0;
    for (const GroupedWeight& part : parts(expert)) count += ceil_divide(part.num_outputs, kPanel);
    return count;
  }
  float* row(int64_t first) const { return rows + first * floats_of_row; }
  void make_rows(int64_t expert, const void* x, int64_t first, int64_t count) const {
    const GroupedWeight& weight = parts(expert).front();
    kernels().widen_rows({p.dtype, x, p.x_stride, &weight, row(first), rounding(expert)}, 0, count);
  }
  void multiply(int64_t expert, int64_t first, int64_t count, void* out, int64_t begin,
                int64_t end) const {
    const float* bias = weights[expert].bias;
    char* columns = static_cast<char*>(out);
    for (const GroupedWeight& part : parts(expert)) {
      const int64_t num_panels = ceil_divide(part.num_outputs, kPanel);
      if (begin < num_panels && end > 0) {
        const GroupedLinear linear = {p.dtype,     nullptr, 0,            &part,           bias,
                                      p.out_dtype, columns, p.out_stride, rounding(expert)};
        kernels().grouped_product(product_of(linear, 0, count, row(first)),
                                  std::max<int64_t>(begin, 0), std::min(end, num_panels));
      }
      begin -= num_panels;
      end -= num_panels;
      columns += part.num_outputs * bytes_of(p.out_dtype);
      if (bias != nullptr) bias += part.num_outputs;
    }
  }
};

// Calls body(blocks) on blocks with `most` rows together, or less.
template <class Body>
void each_batch(std::span<const Block> blocks, int64_t most, Body&& body) {
  for (size_t count = 0; !blocks.empty(); blocks = blocks.subspan(count)) {
    count = 1;
    while (count < blocks.size() && count_rows(blocks.first(count + 1)) <= most) ++count;
    body(blocks.first(count));
  }
}

}  // namespace

void experts(const Experts& p, int64_t num_tokens) {
  const int64_t inner = p.intermediate_size, made = p.has_gates ? 2 * inner : inner;
  const bool is_plain = p.storage == ExpertStorage::kPlain;
  const bool is_gated = p.has_gates && is_plain && p.act == ActivationKind::kSilu &&
                        p.limit == INFINITY && inner % kPanel == 0;
  const int64_t most = is_plain                                     ? kRowsPerBlock
                       : p.storage == ExpertStorage::kQuantized ? kQuantizedRows
                                                                : kGroupedRows;
  const auto blocks = sort_pairs(p, num_tokens, most);
  gather_rows(p, num_tokens);
  const Linear first = {p.dtype, p.rows,  p.size,   nullptr, nullptr, is_gated ? inner : made,
                        p.size,  p.dtype, p.hidden, made};
  const Linear second = {p.dtype, p.hidden,        made,   nullptr, nullptr, p.size,
                         inner,   DType::kFloat32, p.rows, p.size};
  // Over the gates: each is read before it is written.
  const RowOperation activation = Activation{p.dtype, p.act, p.has_gates, p.hidden, p.hidden, inner,
                                             made,    made,  {},          p.limit,  p.shift};
  if (!is_plain) {
    const auto formed = p.storage == ExpertStorage::kQuantized ? multiply_formed<QuantizedForm>
                                                               : multiply_formed<GroupedForm>;
    each_batch(blocks, most, [&](auto batch) {
      formed(first, p.gate_up, p.x_rounding, batch, nullptr);
    });
    each_batch(blocks, most, [&](auto batch) {
      formed(second, p.down, p.hidden_rounding, batch, &activation);
    });
  } else {
    multiply(first, p.gate_up, blocks, is_gated);
    if (!is_gated) run(activation, count_rows(blocks));
    multiply(second, p.down, blocks, false);
  }
  const ExpertSum sum = {p.out_dtype, static_cast<const float*>(p.rows),
                         p.places,    p.scales_inputs ? nullptr : p.weights,
                         p.top_k,     p.size,
                         p.out};
  parallel_rows(num_tokens, p.size * p.top_k,
                [&](int64_t begin, int64_t end) { kernels().sum_experts(sum, begin, end); });
}

}  // namespace vllm_lite
