// Squares of bytes, rows to columns.
#pragma once

#include <cstdint>
#include <cstring>

namespace vllm_lite {

typedef uint8_t Bytes __attribute__((vector_size(16)));
// Bytes of two vectors alternately: of their lower halves, and of their upper ones.
inline Bytes lower(Bytes a, Bytes b) {
  return __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
}
inline Bytes upper(Bytes a, Bytes b) {
  return __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
}

inline void turn(Bytes* rows) {
  // Each pass moves a bit of a byte's column to its row.
  for (int pass = 0; pass < 4; ++pass) {
    Bytes from[16];
    memcpy(from, rows, sizeof from);
    for (int i = 0; i < 8; ++i) {
      rows[2 * i] = lower(from[i], from[i + 8]);
      rows[2 * i + 1] = upper(from[i], from[i + 8]);
    }
  }
}

}  // namespace vllm_lite
