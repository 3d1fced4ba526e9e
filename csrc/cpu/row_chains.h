// Chains of a recorded step: consecutive operations each of whose rows depends on no other row.
// With many rows, a thread takes blocks of them through a whole chain, so that rows stay in its
// cache from one operation to the next and threads meet once. Results are the same, bit for bit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "cpu/program.h"

namespace vllm_lite {

// Whether a tensor is in a temporary of the step whose rows have so many bytes.
using HasRows = std::function<bool(const void* tensor, int64_t row_bytes)>;

// The end of the chain that begins with a call, which may be that call alone.
size_t end_of_chain(const std::vector<Call>& calls, size_t begin, const HasRows& has_rows);

// Runs a chain of several calls; false, having done nothing, for too few rows.
bool run_chain(std::span<const Call> chain, int64_t num_rows);

}  // namespace vllm_lite
