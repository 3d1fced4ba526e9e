// Operations on independent rows (tokens) of a step: alone, or fused with a linear layer, producing
// its input or finishing its output.
#pragma once

#include <cstdint>
#include <optional>
#include <variant>
#include <vector>

#include "cpu/kernel_table.h"

namespace vllm_lite {

using RowOperation =
    std::variant<Norm, Activation, ScaledAdd, RowMix, RowLevel, Rotary, CacheWrite,
                 Route, GatedNorm>;

// Throws std::out_of_range for positions and slots of num_rows rows that are outside.
void check(const RowOperation& operation, int64_t num_rows);

// Rows [begin, end), by the calling thread; they are not checked.
void run_rows(const RowOperation& operation, int64_t begin, int64_t end);

// Cost of a row in elements, by which rows are divided among threads.
int64_t work_of_row(const RowOperation& operation);

// All rows: checked, then run on the thread pool.
void run(const RowOperation& operation, int64_t num_rows);

// Operations fused with a linear layer; results equal the separate operations' bit for bit.
struct BesideProduct {
  std::optional<RowOperation> before;  // writes x
  std::vector<RowOperation> after;     // work on what the product writes
};

void check(const BesideProduct& beside, int64_t num_rows);

// Runs `after` row by row, so that each row stays in cache between operations.
void run_after(const BesideProduct& beside, int64_t num_rows);

}  // namespace vllm_lite
