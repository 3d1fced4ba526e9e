#include "cpu/row_operations.h"

#include <stdexcept>
#include <string>

#include "cpu/isa.h"
#include "cpu/thread_pool.h"

namespace vllm_lite {
namespace {

// What names no place outside the step.
template <class Operation>
void check_rows(const Operation&, int64_t) {}
void check_rows(const Rotary& p, int64_t num_rows) {
  for (int64_t i = 0; i < num_rows; ++i) {
    const int64_t position = p.positions[i];
    if (position < 0 || position >= p.num_positions) {
      throw std::out_of_range("position " + std::to_string(position) +
                              " is outside the rotary cache of " +
                              std::to_string(p.num_positions));
    }
  }
}
void check_rows(const CacheWrite& p, int64_t num_rows) {
  const int64_t num_slots = p.num_blocks * p.block_size;
  for (int64_t i = 0; i < num_rows; ++i) {
    if (p.slots[i] >= num_slots) {
      throw std::out_of_range("slot " + std::to_string(p.slots[i]) +
                              " is beyond the cache of " + std::to_string(num_slots) + " slots");
    }
  }
}

void run_kernel(const Norm& p, int64_t begin, int64_t end) { kernels().norm(p, begin, end); }
void run_kernel(const Activation& p, int64_t begin, int64_t end) {
  kernels().activate(p, begin, end);
}
void run_kernel(const ScaledAdd& p, int64_t begin, int64_t end) {
  kernels().scaled_add(p, begin, end);
}
void run_kernel(const RowMix& p, int64_t begin, int64_t end) { kernels().mix_rows(p, begin, end); }
void run_kernel(const RowLevel& p, int64_t begin, int64_t end) {
  kernels().level_rows(p, begin, end);
}
void run_kernel(const Rotary& p, int64_t begin, int64_t end) { kernels().rotary(p, begin, end); }
void run_kernel(const CacheWrite& p, int64_t begin, int64_t end) {
  kernels().write_cache(p, begin, end);
}
void run_kernel(const Route& p, int64_t begin, int64_t end) { kernels().route(p, begin, end); }
void run_kernel(const GatedNorm& p, int64_t begin, int64_t end) {
  kernels().gated_norm(p, begin, end);
}

int64_t work(const Norm& p) { return p.num_heads * p.size; }
int64_t work(const Activation& p) { return 2 * p.size; }
int64_t work(const ScaledAdd& p) { return p.size; }
int64_t work(const RowMix& p) { return (p.num_inputs + 1) * p.num_outputs * p.size; }
int64_t work(const RowLevel& p) { return 2 * p.size; }
int64_t work(const Rotary& p) { return (p.num_heads[0] + p.num_heads[1]) * p.rot_dim; }
int64_t work(const CacheWrite& p) { return p.num_kv_heads * (p.keys.size + p.values.size); }
int64_t work(const Route& p) { return p.num_experts * (p.top_k + 8); }
int64_t work(const GatedNorm& p) { return 4 * p.size; }

}  // namespace

void check(const RowOperation& operation, int64_t num_rows) {
  std::visit([&](const auto& p) { check_rows(p, num_rows); }, operation);
}

void run_rows(const RowOperation& operation, int64_t begin, int64_t end) {
  std::visit([&](const auto& p) { run_kernel(p, begin, end); }, operation);
}

int64_t work_of_row(const RowOperation& operation) {
  return std::visit([](const auto& p) { return work(p); }, operation);
}

void run(const RowOperation& operation, int64_t num_rows) {
  check(operation, num_rows);
  parallel_rows(num_rows, work_of_row(operation),
                [&](int64_t begin, int64_t end) { run_rows(operation, begin, end); });
}

void check(const BesideProduct& beside, int64_t num_rows) {
  if (beside.before) check(*beside.before, num_rows);
  for (const RowOperation& operation : beside.after) check(operation, num_rows);
}

void run_after(const BesideProduct& beside, int64_t num_rows) {
  if (beside.after.empty()) return;
  int64_t work = 0;
  for (const RowOperation& operation : beside.after) work += work_of_row(operation);
  parallel_rows(num_rows, work, [&](int64_t begin, int64_t end) {
    for (const RowOperation& operation : beside.after) run_rows(operation, begin, end);
  });
}

}  // namespace vllm_lite
