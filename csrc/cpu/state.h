// State-space layers: each request's initial state, and requests divided among threads.
#pragma once

#include <cstdint>

#include "cpu/kernel_table.h"

namespace vllm_lite {

struct StateBatch {
  const int32_t* query_start_loc;  // [R + 1]
  const int32_t* state_in;         // [R]: the slot of the state before its tokens; -1: zeros
  int64_t num_requests;
  int64_t num_tokens;
  int64_t num_slots;  // of the states
};

// All process a request's tokens in order, so that results do not depend on splits into steps.
// Throw std::out_of_range for slots beyond the states. Tokens of no request become 0.
void causal_conv(const CausalConv& p, const StateBatch& batch);
void selective_scan(const SelectiveScan& p, const StateBatch& batch);
void channel_scan(const ChannelScan& p, const StateBatch& batch);
void gated_recurrence(const GatedRecurrence& p, const StateBatch& batch);
void delta_rule(const DeltaRule& p, const StateBatch& batch);

}  // namespace vllm_lite
