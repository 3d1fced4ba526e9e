// Selects the kernels' instruction set: by default the best that this machine has.
#pragma once

#include <string>
#include <vector>

#include "cpu/kernel_table.h"

namespace vllm_lite {

// Names of what was built and this machine can run, best first; "portable" is always the last.
std::vector<std::string> supported_isas();

// Uses the kernels of `name` from now on; throws std::invalid_argument unless it is supported.
void select_isa(const std::string& name);

const char* selected_isa();
const KernelTable& kernels();

// Whether memory is best asked for in the second cache, not in the first.
bool asks_second_cache();

}  // namespace vllm_lite
