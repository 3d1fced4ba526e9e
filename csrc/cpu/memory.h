// Measures the speed of reading memory, a lower bound of a step's time.
#pragma once

#include <cstdint>

namespace vllm_lite {

// Seconds that the thread pool takes to read the whole quarter mebibytes of `data` once.
double read_seconds(const void* data, int64_t num_bytes);

}  // namespace vllm_lite
