#include "cpu/row_chains.h"

#include <algorithm>
#include <type_traits>
#include <variant>

#include "cpu/thread_pool.h"

namespace vllm_lite {
namespace {

// Rows of a block: its inputs and results stay in a core's second-level cache, and what is made of a
// weight, once for a block, is multiplied by many rows.
constexpr int64_t kMostBlockRows = 192, kFewestBlockRows = 96;
// Fewer blocks would leave threads waiting for the last.
constexpr int64_t kBlocksPerThread = 4;
// Every thread reads all weights for each of its blocks: more of them than shared caches keep
// are better divided among the threads.
constexpr int64_t kMostWeightBytes = 8 << 20;

int64_t weight_bytes(const Linear& p) {
  return packed_bytes(p.dtype, p.num_outputs, p.num_inputs);
}
int64_t weight_bytes(const QuantizedLinear& p) {
  int64_t bytes = 0;
  for (int64_t i = 0; i < p.num_parts; ++i) bytes += p.parts[i].num_outputs * p.num_inputs;
  return bytes;
}
int64_t weight_bytes(const GroupedLinear& p) {
  return p.weight->num_outputs * p.weight->num_inputs * p.weight->bits / 8;
}

// ---- whether the rows of operations lie in temporaries' rows of the same index

struct Strides {
  const HasRows& has_rows;
  bool operator()(const void* tensor, DType dtype, int64_t stride) const {
    return tensor == nullptr || has_rows(tensor, stride * bytes_of(dtype));
  }
};

bool are_rows(const Norm& p, const Strides& are) {
  return are(p.x, p.dtype, p.x_stride) && are(p.residual, p.dtype, p.residual_stride) &&
         are(p.out, p.dtype, p.out_stride);
}
bool are_rows(const Activation& p, const Strides& are) {
  return are(p.x, p.dtype, p.x_stride) && are(p.out, p.dtype, p.out_stride);
}
bool are_rows(const ScaledAdd& p, const Strides& are) {
  return are(p.x, p.dtype, p.x_stride) && are(p.y, p.dtype, p.y_stride) &&
         are(p.out, p.dtype, p.out_stride) && are(p.gates, DType::kFloat32, p.gates_stride);
}
bool are_rows(const Rotary& p, const Strides& are) {
  return are(p.heads[0], p.dtype, p.token_strides[0]) &&
         are(p.heads[1], p.dtype, p.token_strides[1]);
}
bool are_rows(const CacheWrite& p, const Strides& are) {
  return are(p.keys.source, p.dtype, p.keys.token_stride) &&
         are(p.values.source, p.dtype, p.values.token_stride);
}
bool are_rows(const GatedNorm& p, const Strides& are) {
  return are(p.x, p.dtype, p.x_stride) && are(p.gate, p.dtype, p.gate_stride) &&
         are(p.out, p.dtype, p.size);
}
// They end a chain.
bool are_rows(const RowMix&, const Strides&) { return false; }
bool are_rows(const RowLevel&, const Strides&) { return false; }
bool are_rows(const Route&, const Strides&) { return false; }
bool are_rows(const RowOperation& operation, const Strides& are) {
  return std::visit([&](const auto& p) { return are_rows(p, are); }, operation);
}

template <class Other>
bool are_rows(const Other&, const Strides&) {
  return false;
}
bool are_rows(const RowCall& call, const Strides& are) { return are_rows(call.p, are); }
template <class P, auto kRun>
bool are_rows(const ProductCall<P, kRun>& call, const Strides& are) {
  const auto& [before, after] = call.beside;
  return are(call.p.x, call.p.dtype, call.p.x_stride) &&
         are(call.p.out, call.p.out_dtype, call.p.out_stride) &&
         (!before || are_rows(*before, are)) &&
         std::all_of(after.begin(), after.end(),
                     [&](const RowOperation& operation) { return are_rows(operation, are); });
}

// ---- calls

// Bytes of weights that a call of rows reads.
template <class Other>
int64_t weights_of(const Other&) {
  return 0;
}
int64_t weights_of(const LinearCall& call) { return weight_bytes(call.p); }
int64_t weights_of(const GatedLinearCall& call) { return 2 * weight_bytes(call.p); }
int64_t weights_of(const QuantizedLinearCall& call) { return weight_bytes(call.p); }
int64_t weights_of(const GroupedLinearCall& call) { return weight_bytes(call.p); }

template <class Other>
void check_call(const Other&, int64_t) {}
void check_call(const RowCall& call, int64_t num_rows) { check(call.p, num_rows); }
template <class P, auto kRun>
void check_call(const ProductCall<P, kRun>& call, int64_t num_rows) {
  check(call.beside, num_rows);
}

template <class Other>
void run_block(const Other&, int64_t, int64_t) {}
void run_block(const RowCall& call, int64_t begin, int64_t end) { run_rows(call.p, begin, end); }
template <class P, auto kRun>
void run_block(const ProductCall<P, kRun>& call, int64_t begin, int64_t end) {
  if (call.beside.before) run_rows(*call.beside.before, begin, end);
  if constexpr (std::is_same_v<ProductCall<P, kRun>, GatedLinearCall>) {
    gated_linear_rows(call.p, begin, end);
  } else {
    linear_rows(call.p, begin, end);
  }
  for (const RowOperation& after : call.beside.after) run_rows(after, begin, end);
}

}  // namespace

size_t end_of_chain(const std::vector<Call>& calls, size_t begin, const HasRows& has_rows) {
  const Strides are = {has_rows};
  size_t end = begin;
  for (int64_t total = 0; end < calls.size(); ++end) {
    total += std::visit([](const auto& call) { return weights_of(call); }, calls[end]);
    if (total > kMostWeightBytes) break;
    if (!std::visit([&](const auto& call) { return are_rows(call, are); }, calls[end])) break;
  }
  return std::max(end, begin + 1);
}

bool run_chain(std::span<const Call> chain, int64_t num_rows) {
  const int64_t threads = num_threads();
  const int64_t fewest = kBlocksPerThread * threads;
  if (num_rows < fewest * kFewestBlockRows) return false;
  const int64_t num_blocks =
      std::max(fewest, ceil_divide(ceil_divide(num_rows, kMostBlockRows), threads) * threads);
  for (const Call& call : chain) {
    std::visit([&](const auto& operation) { check_call(operation, num_rows); }, call);
  }
  parallel_for(num_blocks, 1, [&](int64_t first, int64_t last) {
    for (int64_t block = first; block < last; ++block) {
      const int64_t begin = block * num_rows / num_blocks;
      const int64_t end = (block + 1) * num_rows / num_blocks;
      for (const Call& call : chain) {
        std::visit([&](const auto& operation) { run_block(operation, begin, end); }, call);
      }
    }
  });
  return true;
}

}  // namespace vllm_lite
