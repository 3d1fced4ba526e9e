// How fast this machine's memory is read, which no step can be faster than.
#pragma once

#include <cstdint>

namespace vllm_lite {

// Seconds in which the thread pool reads the whole quarter mebibytes in `data`, once.
double read_seconds(const void* data, int64_t num_bytes);

}  // namespace vllm_lite
