// The supported storage formats of GGUF files, by their numbers in files.
#pragma once

#include <stdint.h>

namespace vllm_lite {

enum GgmlType : int {
  kGgmlF32 = 0,
  kGgmlF16 = 1,
  kGgmlQ4_0 = 2,
  kGgmlQ4_1 = 3,
  kGgmlQ5_0 = 6,
  kGgmlQ5_1 = 7,
  kGgmlQ8_0 = 8,
  kGgmlQ2_K = 10,
  kGgmlQ3_K = 11,
  kGgmlQ4_K = 12,
  kGgmlQ5_K = 13,
  kGgmlQ6_K = 14,
  kGgmlIQ4_NL = 20,
  kGgmlBF16 = 30,
};

// A block of a format: its values and bytes. Formats without blocks are
// taken 16 values at a time, and may end within one.
struct GgmlBlock {
  int64_t elements;
  int64_t bytes;
};

}  // namespace vllm_lite
