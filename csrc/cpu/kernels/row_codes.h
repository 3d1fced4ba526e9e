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

// The least power of two that is not below a normal number.
static inline float power_above(float number) {
  return bit_cast<float>((bit_cast<int32_t>(number) + 0x7fffff) & 0x7f800000);
}

// Writes the codes of a group, as floats, and returns their scale.
template <class T, class Number>
static inline float code_group(const T* x, int64_t size, const RowRounding& by, Number, float limit,
                               float* codes) {
  const Number* const type = nullptr;
  const auto rounded = [&](Vec v) { return decode(encode(v, type), type); };
  if (by.scale != nullptr) {
    const Vec scale = broadcast(*by.scale), most = broadcast(limit), least = broadcast(-limit);
    for_each_vector(size, [&](int64_t i, int64_t count) {
      const Vec v = max_lanes(min_lanes(load_upto(x + i, count) / scale, most), least);
      store_upto(codes + i, rounded(v), count);
    });
    return *by.scale;
  }
  const float largest = largest_magnitude(x, size);
  const bool is_usable = largest > kSmallest && largest < INFINITY;
  float scale = largest / limit;
  if (by.is_power && is_usable) scale = power_above(scale);
  const Vec factor = broadcast(by.is_power ? 1.0f / scale : limit / largest);
  for_each_vector(size, [&](int64_t i, int64_t count) {
    store_upto(codes + i, is_usable ? rounded(load_upto(x + i, count) * factor) : Vec{}, count);
  });
  return scale;
}

// The least and the greatest of numbers and zero. The bits of numbers, with those of negative ones
// turned, are in their order, and what is not a number is at an end.
struct Range {
  float least, greatest;
};
template <class T>
static inline Range range_of(const T* x, int64_t size) {
  const auto in_order = [](auto bits) { return bits ^ (bits >> 31 & 0x7fffffff); };
  IntVec least = {}, greatest = {};
  for_each_vector(size, [&](int64_t i, int64_t count) {
    const IntVec v = in_order(bit_cast<IntVec>(load_upto(x + i, count)));
    least = v < least ? v : least;
    greatest = v > greatest ? v : greatest;
  });
  int32_t ends[] = {0, 0};
  for (int i = 0; i < kLanes; ++i) {
    ends[0] = min_of<int32_t>(ends[0], least[i]), ends[1] = max_of<int32_t>(ends[1], greatest[i]);
  }
  return {bit_cast<float>(in_order(ends[0])), bit_cast<float>(ends[1])};
}

// How a row becomes codes of int8, all with one scale: as many steps of it, and `zero` more.
struct RowScale {
  float scale, zero = 0.0f, factor = 0.0f;
  bool is_given, is_shifted;

  template <class FindRange>
  RowScale(const RowRounding& rounding, FindRange&& find_range)
      : is_given(rounding.scale != nullptr), is_shifted(rounding.is_shifted) {
    if (is_given) {
      scale = *rounding.scale;
      if (is_shifted) zero = *rounding.zero;
      return;
    }
    const Range range = find_range();
    float span = range.greatest - range.least;
    // What is not a number stays so.
    if (!is_shifted && span == span) span = max_of(-range.least, range.greatest);
    const float steps = is_shifted ? 255.0f : 127.0f;
    scale = span / steps;
    // What is not finite makes the scale so, whatever its codes are.
    if (span > kSmallest && span < INFINITY) factor = steps / span;
    if (is_shifted) zero = nearbyintf(-128.0f - (factor > 0.0f ? range.least * factor : 0.0f));
  }
  // Not rounded yet.
  Vec steps_of(Vec v) const {
    const Vec steps = is_given ? v / broadcast(scale) : v * broadcast(factor);
    const Vec most = broadcast(127.0f - zero);
    const Vec least = broadcast((is_shifted ? -128.0f : -127.0f) - zero);
    return max_lanes(min_lanes(steps, most), least);
  }
};

}  // namespace vllm_lite::VLLM_LITE_ISA
