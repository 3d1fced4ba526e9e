// Joins operations of a recorded step that hand rows on to one another, so that threads meet less
// often and rows stay in a cache from one to the next. Results are the same, bit for bit.
//
//   a norm or a gated activation that writes what a product reads
//   norms of heads, rotation and the cache's write that work on what a product has written
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "cpu/program.h"

namespace vllm_lite {

// Whether two addresses are in different temporaries of the step.
using AreApart = std::function<bool(const void*, const void*)>;

// `calls` with those joined that can be.
std::vector<Call> fuse(const std::vector<Call>& calls, const AreApart& are_apart);

}  // namespace vllm_lite
