// Rows rounded to the numbers of an 8-bit type.
#include "cpu/kernels/cached_numbers.h"
#include "cpu/kernels/kernels.h"

namespace vllm_lite::VLLM_LITE_ISA {
namespace {

// Groups without a larger number become zeros: the inverse of their scale may overflow.
constexpr float kSmallest = 1e-30f;

template <class Function>
void with_number(DType number, Function&& function) {
  switch (number) {
    case DType::kFloat8E4M3: return function(Float8E4M3{}, 448.0f);
    case DType::kFloat8E5M2: return function(Float8E5M2{}, 57344.0f);
    default: return function(Int8{}, 127.0f);
  }
}

// NaN if there is one.
template <class T>
float largest_magnitude(const T* x, int64_t size) {
  IntVec largest = {};
  for_each_vector(size, [&](int64_t i, int64_t count) {
    const IntVec bits = bit_cast<IntVec>(load_upto(x + i, count)) & 0x7fffffff;
    largest = bits > largest ? bits : largest;
  });
  int32_t bits = 0;
  for (int i = 0; i < kLanes; ++i) bits = max_of<int32_t>(bits, largest[i]);
  return bit_cast<float>(bits);
}

template <class T, class Number>
void round_row(const RowRounding& p, const T* x, float* out, Number, float limit) {
  const Number* const type = nullptr;
  const auto rounded = [&](Vec v) { return decode(encode(v, type), type); };
  if (p.scale != nullptr) {
    const Vec scale = broadcast(*p.scale), most = broadcast(limit), least = broadcast(-limit);
    for_each_vector(p.size, [&](int64_t i, int64_t count) {
      const Vec v = max_lanes(min_lanes(load_upto(x + i, count) / scale, most), least);
      store_upto(out + i, rounded(v) * scale, count);
    });
    return;
  }
  for (int64_t first = 0; first < p.size; first += p.group_size) {
    const int64_t size = min_of(p.group_size, p.size - first);
    const float largest = largest_magnitude(x + first, size);
    const bool is_usable = largest > kSmallest && largest < INFINITY;
    const Vec factor = broadcast(limit / largest), scale = broadcast(largest / limit);
    for_each_vector(size, [&](int64_t i, int64_t count) {
      const Vec codes = is_usable ? rounded(load_upto(x + first + i, count) * factor) : Vec{};
      store_upto(out + first + i, codes * scale, count);
    });
  }
}

}  // namespace

void round_rows(const RowRounding& p, int64_t begin, int64_t end) {
  with_type(p.dtype, [&](auto type) {
    using T = decltype(type);
    with_number(p.number, [&](auto number, float limit) {
      for (int64_t row = begin; row < end; ++row) {
        round_row(p, static_cast<const T*>(p.x) + row * p.x_stride, p.out + row * p.size, number,
                  limit);
      }
    });
  });
}

}  // namespace vllm_lite::VLLM_LITE_ISA
