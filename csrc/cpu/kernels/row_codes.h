// Rows as codes of an 8-bit type times a scale.
#pragma once

#include "cpu/kernels/cached_numbers.h"

namespace vllm_lite::VLLM_LITE_ISA {

// Groups without a larger number become zeros: the inverse of their scale may overflow.
constexpr float kSmallest = 1e-30f;

template <class Function>
static inline void with_number(DType number, Function&& function) {
  switch (number) {
    case DType::kFloat8E4M3: return function(Float8E4M3{}, 448.0f);
    case DType::kFloat8E5M2: return function(Float8E5M2{}, 57344.0f);
    default: return function(Int8{}, 127.0f);
  }
}

// NaN if there is one.
template <class T>
static inline float largest_magnitude(const T* x, int64_t size) {
  IntVec largest = {};
  for_each_vector(size, [&](int64_t i, int64_t count) {
    const IntVec bits = bit_cast<IntVec>(load_upto(x + i, count)) & 0x7fffffff;
    largest = bits > largest ? bits : largest;
  });
  int32_t bits = 0;
  for (int i = 0; i < kLanes; ++i) bits = max_of<int32_t>(bits, largest[i]);
  return bit_cast<float>(bits);
}

// Writes the codes of a group, as floats, and returns their scale: that given, unless it is null.
template <class T, class Number>
static inline float code_group(const T* x, int64_t size, const float* given, Number, float limit,
                               float* codes) {
  const Number* const type = nullptr;
  const auto rounded = [&](Vec v) { return decode(encode(v, type), type); };
  if (given != nullptr) {
    const Vec scale = broadcast(*given), most = broadcast(limit), least = broadcast(-limit);
    for_each_vector(size, [&](int64_t i, int64_t count) {
      const Vec v = max_lanes(min_lanes(load_upto(x + i, count) / scale, most), least);
      store_upto(codes + i, rounded(v), count);
    });
    return *given;
  }
  const float largest = largest_magnitude(x, size);
  const bool is_usable = largest > kSmallest && largest < INFINITY;
  const Vec factor = broadcast(limit / largest);
  for_each_vector(size, [&](int64_t i, int64_t count) {
    store_upto(codes + i, is_usable ? rounded(load_upto(x + i, count) * factor) : Vec{}, count);
  });
  return largest / limit;
}

}  // namespace vllm_lite::VLLM_LITE_ISA
