// Whether this process may use the tile unit of AMX, and whether that works as it should.
#pragma once

namespace vllm_lite {

// Found out once: processor and system have tiles, the system grants them to this process, and
// small products come out right. They are tried in a child process, because machines exist that
// announce tiles and end whoever uses them.
bool tiles_are_usable();

}  // namespace vllm_lite
