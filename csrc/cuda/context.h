// Positions that a token sees, their units, and the thread blocks that process them: shared by the
// attention kernel and the merging one.
#pragma once

#include "cuda/device.h"
#include "cuda/kernels.h"

namespace vllm_lite::cuda {

struct Context {
  int request;
  int begin;  // the token sees positions [begin, end)
  int end;
  int unit;  // positions of a unit, a power of two; units begin at its multiples
  int first_unit;
  int num_units;            // 0 for a token of no request
  int units_per_block;      // of a thread block; the last may have fewer, some none
};

// The last request that begins at or before `token`, or -1 past the last request's end.
__device__ inline int find_request(const DecodeAttention& p, int token) {
  const int32_t* starts = p.query_start_loc;
  // In a step that only decodes, token t is request t: no chain of loads.
  if (token < p.num_requests && starts[token] == token && starts[token + 1] == token + 1) {
    return token;
  }
  if (token >= starts[p.num_requests]) return -1;
  int low = 0;
  int high = p.num_requests;
  while (low < high) {
    const int middle = (low + high) / 2;
    if (starts[middle] <= token) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low - 1;
}

__device__ inline Context find_context(const DecodeAttention& p, int token) {
  Context context = {};
  context.request = find_request(p, token);
  if (context.request < 0) return context;
  const int after = p.query_start_loc[context.request + 1] - token - 1;
  const int64_t capacity = static_cast<int64_t>(p.blocks_per_request) * p.block_size;
  const int64_t end = p.seq_lens[context.request] - after;
  context.end = static_cast<int>(end < capacity ? end : capacity);
  if (context.end <= 0) return context;
  if (p.sliding_window > 0 && p.sliding_window < context.end) {
    context.begin = context.end - p.sliding_window;
  }
  context.unit = kShortestUnit;
  // One unit is kept for a window that begins within one.
  while ((context.end - context.begin - 1) / (kMaxUnits - 1) >= context.unit) context.unit *= 2;
  context.first_unit = context.begin / context.unit;
  context.num_units = (context.end - 1) / context.unit + 1 - context.first_unit;
  const int shared = (context.num_units + p.num_splits - 1) / p.num_splits;
  context.units_per_block = shared > p.min_units ? shared : p.min_units;
  return context;
}

// Softmax over several ranges of positions: the largest score, the sum of weights relative to
// it, and outside of this struct the weighted sum of values. Scores are powers of two.
struct Softmax {
  float largest;
  float total;
};

constexpr float kNothing = -__builtin_inff();

// Factors of a sum so far and of a later one when they are merged.
struct Shares {
  float kept;
  float added;
};

// Merges `later` into `sum`; weighted sums follow by `merge_values`. What is merged into nothing
// stays as it is to the bit, and so does what nothing is merged into.
__device__ inline Shares merge(Softmax& sum, const Softmax& later) {
  const float largest = fmaxf(sum.largest, later.largest);
  const float shift = largest == kNothing ? 0.0f : largest;
  const Shares shares = {power_of_two(sum.largest - shift), power_of_two(later.largest - shift)};
  sum.total = multiply_add(later.total, shares.added, multiply(sum.total, shares.kept));
  sum.largest = largest;
  return shares;
}

__device__ inline float merge_values(float sum, float later, const Shares& shares) {
  return multiply_add(later, shares.added, multiply(sum, shares.kept));
}

}  // namespace vllm_lite::cuda
