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
  kGgmlIQ2_XXS = 16,
  kGgmlIQ2_XS = 17,
  kGgmlIQ3_XXS = 18,
  kGgmlIQ1_S = 19,
  kGgmlIQ4_NL = 20,
  kGgmlIQ3_S = 21,
  kGgmlIQ2_S = 22,
  kGgmlIQ4_XS = 23,
  kGgmlIQ1_M = 29,
  kGgmlBF16 = 30,
  kGgmlTQ1_0 = 34,
  kGgmlTQ2_0 = 35,
  kGgmlMXFP4 = 39,
  kGgmlNVFP4 = 40,
  kGgmlQ1_0 = 41,
  kGgmlQ2_0 = 42,
};

// By type: the vectors of a format's codebook, as codes of four values a word; set once, by Python.
constexpr int kMostBooks = 32;
extern const uint32_t* ggml_books[kMostBooks];

// A block of a format: its values and bytes. Formats without blocks are
// taken 16 values at a time, and may end within one.
struct GgmlBlock {
  int64_t elements;
  int64_t bytes;
};

}  // namespace vllm_lite
