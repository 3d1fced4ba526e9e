// Checks whether this process may use AMX's tile unit and whether it works.
#pragma once

namespace vllm_lite {

// Determined once: processor and system have tiles, the system grants them to this process, and
// small GEMMs are correct. They are tried in a child process, because some machines
// announce tiles and kill processes that use them.
bool tiles_are_usable();

}  // namespace vllm_lite
