#include "cpu/kernels/kernels.h"
#include "cpu/kernels/row_means.h"

namespace vllm_lite::VLLM_LITE_ISA {
namespace {

template <class T>
auto loads_of(const T* row) {
  return [row](int64_t i, int64_t count) { return load_upto(row + i, count); };
}

template <class T>
float mean_of(const T* row, int64_t size) {
  return mean_of(size, loads_of(row), AddPlain());
}

template <class T>
float mean_square_of(const T* row, int64_t size) {
  return mean_of(size, loads_of(row),
                 [](Vec v, Vec sum, int64_t) { return multiply_add(v, v, sum); });
}

template <class T>
float variance_of(const T* row, int64_t size, Vec mean) {
  return mean_of(size, loads_of(row), AddSquareFrom{mean});
}

inline float inverse_root(float x) { return 1.0f / sqrtf(x); }

template <class T, class W>
void rms_norm_row(const Norm& p, const T* x, int64_t head, T* out) {
  const W* weight = static_cast<const W*>(p.weight) + head * p.weight_head_stride;
  const float square = mean_square_of(x, p.size);
  const Vec scale = broadcast(inverse_root(square + p.eps));
  for_each_vector(p.size, [&](int64_t i, int64_t count) {
    Vec normed = load_upto(x + i, count) * scale;
    // A weight of x's own type multiplies rounded numbers.
    if constexpr (sizeof(T) == sizeof(W)) normed = rounded_to(out, normed);
    store_upto(out + i, normed * load_upto(weight + i, count), count);
  });
}

template <class T, class W>
void layer_norm_row(const Norm& p, const T* x, int64_t head, T* out) {
  const int64_t start = head * p.weight_head_stride;
  const W* weight = static_cast<const W*>(p.weight) + start;
  const W* bias = p.bias == nullptr ? nullptr : static_cast<const W*>(p.bias) + start;
  const Vec mean = broadcast(mean_of(x, p.size));
  const float variance = variance_of(x, p.size, mean);
  const Vec scale = broadcast(inverse_root(variance + p.eps));
  for_each_vector(p.size, [&](int64_t i, int64_t count) {
    const Vec normed = (load_upto(x + i, count) - mean) * scale;
    const Vec shift = bias == nullptr ? Vec{} : load_upto(bias + i, count);
    store_upto(out + i, multiply_add(normed, load_upto(weight + i, count), shift), count);
  });
}

template <class T, class W>
void norm_rows(const Norm& p, int64_t begin, int64_t end) {
  const auto norm_row = p.is_centered ? layer_norm_row<T, W> : rms_norm_row<T, W>;
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
      norm_row(p, x + head * p.x_head_stride, head, out + head * p.out_head_stride);
    }
  }
}

template <class T>
void level_row(const RowLevel& p, int64_t row) {
  const T* x = static_cast<const T*>(p.x) + row * p.x_stride;
  T* out = static_cast<T*>(p.out) + row * p.out_stride;
  if (p.like != nullptr) {
    const float told = mean_square_of(static_cast<const T*>(p.like) + row * p.like_stride, p.size);
    const float own = mean_square_of(x, p.size);
    const Vec scale = broadcast(sqrtf(told) / sqrtf(own > p.bound ? own : p.bound));
    for_each_vector(p.size, [&](int64_t i, int64_t count) {
      store_upto(out + i, load_upto(x + i, count) * scale, count);
    });
    return;
  }
  const Vec mean = broadcast(mean_of(x, p.size)), none = {};
  const Vec cut = mean + broadcast(p.bound * sqrtf(variance_of(x, p.size, mean)));
  for_each_vector(p.size, [&](int64_t i, int64_t count) {
    const Vec above = load_upto(x + i, count) - cut;
    store_upto(out + i, above < none ? none : above, count);  // a NaN stays one
  });
}

}  // namespace

void level_rows(const RowLevel& p, int64_t begin, int64_t end) {
  with_type(p.dtype, [&](auto number) {
    for (int64_t row = begin; row < end; ++row) level_row<decltype(number)>(p, row);
  });
}

void norm(const Norm& p, int64_t begin, int64_t end) {
  if (p.dtype == DType::kFloat32) {
    norm_rows<float, float>(p, begin, end);
  } else if (p.weight_dtype == DType::kFloat32) {
    norm_rows<BFloat16, float>(p, begin, end);
  } else {
    norm_rows<BFloat16, BFloat16>(p, begin, end);
  }
}

}  // namespace vllm_lite::VLLM_LITE_ISA
