// Fuses operations of a recorded step that pass rows to each other: threads synchronise less often
// and rows stay in cache between operations. Results are the same, bit for bit.
//
//   a norm or a gated activation that writes a linear layer's input
//   norms of heads, rotation and cache writes of a linear layer's output
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "cpu/program.h"

namespace vllm_lite {

// Whether two addresses are in different temporaries of the step.
using AreApart = std::function<bool(const void*, const void*)>;

// Returns `calls`, fused where possible.
std::vector<Call> fuse(const std::vector<Call>& calls, const AreApart& are_apart);

}  // namespace vllm_lite
