#include "cpu/kernels/kernels.h"

namespace vllm_lite::VLLM_LITE_ISA {
namespace {

// Four chains of sums hide the latency of an addition; their order is fixed.
template <class T>
float sum_of_squares(const T* row, int64_t size) {
  Vec sums[4] = {};
  int64_t i = 0;
  for (; i + 4 * kLanes <= size; i += 4 * kLanes) {
    for (int chain = 0; chain < 4; ++chain) {
      const Vec x = load(row + i + chain * kLanes);
      sums[chain] = multiply_add(x, x, sums[chain]);
    }
  }
  for_each_vector(size - i, [&](int64_t offset, int64_t count) {
    const Vec x = load_upto(row + i + offset, count);
    sums[0] = multiply_add(x, x, sums[0]);
  });
  return reduce_add((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

template <class T>
void norm_row(const RmsNorm& p, const T* x, const T* weight, T* out) {
  const float mean = sum_of_squares(x, p.size) / static_cast<float>(p.size);
  const Vec scale = broadcast(1.0f / sqrtf(mean + p.eps));
  for_each_vector(p.size, [&](int64_t i, int64_t count) {
    const Vec normed = rounded_to(out, load_upto(x + i, count) * scale);
    store_upto(out + i, normed * load_upto(weight + i, count), count);
  });
}

template <class T>
void rms_norm_rows(const RmsNorm& p, int64_t begin, int64_t end) {
  const T* weight = static_cast<const T*>(p.weight);
  for (int64_t token = begin; token < end; ++token) {
    const T* x = static_cast<const T*>(p.x) + token * p.x_stride;
    T* out = static_cast<T*>(p.out) + token * p.out_stride;
    if (p.residual != nullptr) {
      T* residual = static_cast<T*>(p.residual) + token * p.residual_stride;
      for_each_vector(p.size, [&](int64_t i, int64_t count) {
        store_upto(residual + i, load_upto(x + i, count) + load_upto(residual + i, count), count);
      });
      x = residual;
    }
    for (int64_t head = 0; head < p.num_heads; ++head) {
      norm_row(p, x + head * p.x_head_stride, weight, out + head * p.out_head_stride);
    }
  }
}

}  // namespace

void rms_norm(const RmsNorm& p, int64_t begin, int64_t end) {
  if (p.dtype == DType::kBFloat16) {
    rms_norm_rows<BFloat16>(p, begin, end);
  } else {
    rms_norm_rows<float>(p, begin, end);
  }
}

}  // namespace vllm_lite::VLLM_LITE_ISA
