// Means over a row's numbers, for norms.
#pragma once

#include "cpu/kernels/simd.h"

namespace vllm_lite::VLLM_LITE_ISA {
namespace {

// The mean of the terms that add(v, sum, count) adds, v being load(offset, count). Four chains of
// sums hide the latency of an addition; their order is fixed.
template <class Load, class Add>
float mean_of(int64_t size, Load&& load, Add&& add) {
  Vec sums[4] = {};
  int64_t i = 0;
  for (; i + 4 * kLanes <= size; i += 4 * kLanes) {
    for (int chain = 0; chain < 4; ++chain) {
      sums[chain] = add(load(i + chain * kLanes, int64_t{kLanes}), sums[chain], int64_t{kLanes});
    }
  }
  for_each_vector(size - i, [&](int64_t offset, int64_t count) {
    sums[0] = add(load(i + offset, count), sums[0], count);
  });
  return reduce_add((sums[0] + sums[1]) + (sums[2] + sums[3])) / static_cast<float>(size);
}

struct AddPlain {
  Vec operator()(Vec v, Vec sum, int64_t) const { return sum + v; }
};

struct AddSquareFrom {
  Vec mean;
  Vec operator()(Vec v, Vec sum, int64_t count) const {
    // Mask lanes beyond the row's end.
    Vec apart = v - mean;
    for (int64_t lane = count; lane < kLanes; ++lane) apart[lane] = 0.0f;
    return multiply_add(apart, apart, sum);
  }
};

}  // namespace
}  // namespace vllm_lite::VLLM_LITE_ISA
