// Operations that treat each row of a step, a token's, by itself: alone, or beside a product, as what
// makes its rows and what finishes its outputs.
#pragma once

#include <cstdint>
#include <optional>
#include <variant>
#include <vector>

#include "cpu/kernel_table.h"

namespace vllm_lite {

struct RotaryRows {
  Rotary p;
  int64_t num_positions;  // rows of the cosine and sine cache
};

struct CacheRows {
  CacheWrite key;
  CacheWrite value;
  int64_t num_blocks;  // of the caches
};

using RowOperation = std::variant<Norm, Activation, ScaledAdd, RotaryRows, CacheRows, Route,
                                  GatedNorm>;

// Throws std::out_of_range for positions and slots of num_rows rows that are outside.
void check(const RowOperation& operation, int64_t num_rows);

// Rows [begin, end), by the calling thread; they are not checked.
void run_rows(const RowOperation& operation, int64_t begin, int64_t end);

// Numbers that a row takes, by which rows are shared out.
int64_t work_of_row(const RowOperation& operation);

// All of it: checked, then spread over the threads.
void run(const RowOperation& operation, int64_t num_rows);

// What a product does beside multiplying. Bits are those of the operations in turn.
struct BesideProduct {
  std::optional<RowOperation> before;  // writes x
  std::vector<RowOperation> after;     // work on what the product writes
};

void check(const BesideProduct& beside, int64_t num_rows);

// What comes after, row by row: each row is in a cache from one operation to the next.
void run_after(const BesideProduct& beside, int64_t num_rows);

}  // namespace vllm_lite
