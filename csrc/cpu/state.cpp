#include "cpu/state.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "cpu/isa.h"
#include "cpu/thread_pool.h"

namespace vllm_lite {
namespace {

void check_slot(int64_t slot, const StateBatch& batch) {
  if (slot < batch.num_slots) return;
  throw std::out_of_range("state " + std::to_string(slot) + " is beyond the " +
                          std::to_string(batch.num_slots) + " slots");
}

// Requests with tokens; clears the rows of tokens of no request.
std::vector<StateRun> runs_of(const StateBatch& batch, const int32_t* state_out, void* out,
                              int64_t row_bytes) {
  const int32_t* starts = batch.query_start_loc;
  if (starts[0] != 0) throw std::out_of_range("query_start_loc does not start at 0");
  std::vector<StateRun> runs;
  for (int64_t r = 0; r < batch.num_requests; ++r) {
    const int64_t count = starts[r + 1] - starts[r];
    if (count < 0 || starts[r + 1] > batch.num_tokens) {
      throw std::out_of_range("query_start_loc is not an ascending list of token indices");
    }
    check_slot(batch.state_in[r], batch);
    if (count > 0) runs.push_back({starts[r], count, batch.state_in[r]});
  }
  for (int64_t t = 0; t < batch.num_tokens; ++t) check_slot(state_out[t], batch);
  const int64_t end = starts[batch.num_requests];
  std::memset(static_cast<char*>(out) + end * row_bytes, 0, (batch.num_tokens - end) * row_bytes);
  return runs;
}

int64_t num_blocks(int64_t num_channels) {
  return (num_channels + kConvChannels - 1) / kConvChannels;
}

// Each run's `num_parts` heads or blocks of channels, each of so much work for a token.
template <class Scan>
void scan_all(const Scan& p, const StateBatch& batch, const std::vector<StateRun>& runs,
              int64_t num_parts, int64_t work_of_token,
              void (*kernel)(const Scan&, const StateRun&, int64_t, float*)) {
  const int64_t num_runs = static_cast<int64_t>(runs.size());
  const int64_t work = work_of_token * batch.num_tokens / std::max<int64_t>(1, num_runs);
  parallel_rows(num_runs * num_parts, work, [&](int64_t begin, int64_t end) {
    thread_local std::vector<float> scratch;
    scratch.resize(std::max<size_t>(scratch.size(), scan_scratch_floats(p)));
    for (int64_t i = begin; i < end; ++i) {
      kernel(p, runs[i / num_parts], i % num_parts, scratch.data());
    }
  });
}

}  // namespace

void causal_conv(const CausalConv& p, const StateBatch& batch) {
  const auto runs = runs_of(batch, p.state_out, p.out, p.num_channels * bytes_of(p.dtype));
  const int64_t blocks = num_blocks(p.num_channels);
  const KernelTable& table = kernels();
  const int64_t num_items = static_cast<int64_t>(runs.size()) * blocks;
  const int64_t work = p.kernel_size * kConvChannels * batch.num_tokens /
                       std::max<int64_t>(1, static_cast<int64_t>(runs.size()));
  parallel_rows(num_items, work, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      table.causal_conv(p, runs[i / blocks], i % blocks, i % blocks + 1);
    }
  });
}

void selective_scan(const SelectiveScan& p, const StateBatch& batch) {
  const auto runs =
      runs_of(batch, p.state_out, p.out, p.num_heads * p.head_size * bytes_of(p.dtype));
  scan_all(p, batch, runs, p.num_heads, p.state_size * p.head_size, kernels().selective_scan);
}

void channel_scan(const ChannelScan& p, const StateBatch& batch) {
  const auto runs = runs_of(batch, p.state_out, p.out, p.num_channels * bytes_of(p.dtype));
  // An exponential costs as much as several multiplications.
  scan_all(p, batch, runs, num_blocks(p.num_channels), 4 * p.state_size * kConvChannels,
           kernels().channel_scan);
}

void gated_recurrence(const GatedRecurrence& p, const StateBatch& batch) {
  const auto runs = runs_of(batch, p.state_out, p.out, p.num_channels * bytes_of(p.dtype));
  scan_all(p, batch, runs, num_blocks(p.num_channels), 16 * kConvChannels,
           kernels().gated_recurrence);
}

void delta_rule(const DeltaRule& p, const StateBatch& batch) {
  const auto runs =
      runs_of(batch, p.state_out, p.out, p.num_heads * p.value_size * bytes_of(p.dtype));
  scan_all(p, batch, runs, p.num_heads, 2 * p.key_size * p.value_size, kernels().delta_rule);
}

}  // namespace vllm_lite
