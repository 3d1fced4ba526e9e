// Packing bfloat16 weights into slim panels, spread over the thread pool.
#pragma once

#include "cpu/kernel_table.h"

namespace vllm_lite {

// Bytes of a packed weight [num_outputs, num_inputs], num_inputs > 0.
int64_t slim_bytes(int64_t num_outputs, int64_t num_inputs, int64_t num_exceptions);

// Writes a plan for each panel; the number of exceptions of all. The packed weight is not needed yet.
int64_t plan_slim(const PackLinear& p, SlimPlan* plans);

void pack_slim(const PackLinear& p, const SlimPlan* plans);

}  // namespace vllm_lite
