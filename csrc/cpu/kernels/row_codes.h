// Rows rounded to codes times scales.
#pragma once

#include "cpu/kernels/cached_numbers.h"

namespace vllm_lite::VLLM_LITE_ISA {

// Groups without a larger number become zeros: the inverse of their scale may overflow.
constexpr float kSmallest = 1e-30f;

// To the nearest of `by.values` or their negatives, of two as near to the one at an even place. What is
// not a number becomes the last.
static inline Vec to_values(Vec v, const RowRounding& by) {
  const BitsVec bits = bit_cast<BitsVec>(v);
  const Vec magnitude = bit_cast<Vec>(bits & 0x7fffffffu);
  Vec nearest = broadcast(by.values[0]);
  for (int64_t i = 1; i < by.num_values; ++i) {
    const Vec middle = broadcast((by.values[i - 1] + by.values[i]) / 2.0f);
    const auto is_below = i % 2 == 0 ? magnitude < middle : magnitude <= middle;
    nearest = is_below ? nearest : broadcast(by.values[i]);
  }
  return bit_cast<Vec>(bit_cast<BitsVec>(nearest) | (bits & 0x80000000u));
}

// Calls function(rounded, limit) with what rounds vectors to codes, and the largest of these.
template <class Function>
static inline void with_rounding(const RowRounding& by, Function&& function) {
  const auto with_number = [&](auto number, float limit) {
    function([type = &number](Vec v) { return decode(encode(v, type), type); }, limit);
  };
  if (by.values != nullptr) {
    return function([&](Vec v) { return to_values(v, by); }, by.values[by.num_values - 1]);
  }
  switch (by.number) {
    case DType::kFloat8E4M3: return with_number(Float8E4M3{}, 448.0f);
    case DType::kFloat8E5M2: return with_number(Float8E5M2{}, 57344.0f);
    default: return with_number(Int8{}, 127.0f);
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

// What the scale of numbers up to 6 is for a group of this spread, with zeros up to `count`: of a normal
// distribution, that of the least squared error (QuEST, Panferov et al., 2025).
template <class T>
static inline float scale_by_spread(const T* x, int64_t size, float count) {
  Vec sum = {}, squares = {};
  for_each_vector(size, [&](int64_t i, int64_t lanes) {
    const Vec v = load_upto(x + i, lanes);
    sum += v;
    squares = multiply_add(v, v, squares);
  });
  const float mean = reduce_add(sum) / count;
  const float variance = reduce_add(squares) / count - mean * mean;
  return 2.92247856f / 6.0f * (variance < 0.0f ? 0.0f : sqrtf(variance)) + 1e-8f;
}

// The least power of two, of those that are normal numbers, that is not below a number.
static inline float power_above(float number) {
  return bit_cast<float>((bit_cast<int32_t>(number) + 0x7fffff) & 0x7f800000);
}

// 2 to the exponent of a magnitude less that of `limit`, a number from 1 on. 1 for zero and for what is
// not a number.
static inline float power_below(float magnitude, float limit) {
  const auto exponent = [](float x) { return bit_cast<int32_t>(x) >> 23; };
  if (!(magnitude > 0.0f)) return 1.0f;
  // Biased; that of the smallest power, which is subnormal, is 0.
  const int32_t biased = 127 + exponent(magnitude) - exponent(limit);
  if (biased <= 0) return 0x1p-127f;
  return magnitude < INFINITY ? bit_cast<float>(biased << 23) : 0x1p127f;
}

// How a group's numbers become codes.
struct CodeScale {
  float scale;
  float factor = 0.0f;    // of numbers; 0: they are divided by the scale
  bool is_usable = true;  // else codes are zeros

  template <class FindLargest>
  CodeScale(const RowRounding& by, float limit, FindLargest&& find_largest) {
    const bool is_float = by.scales == RowScales::kFloat8;
    if (by.scale != nullptr && !is_float) {
      scale = *by.scale;
      return;
    }
    const float largest = find_largest();
    scale = largest / limit;
    if (is_float) {
      const Float8E4M3* const type = nullptr;
      const float whole = by.scale == nullptr ? 1.0f : *by.scale;
      scale = decode(encode(broadcast(scale / whole), type), type)[0] * whole;
    } else if (by.scales == RowScales::kPowerBelow) {
      scale = power_below(largest, limit);
    } else if (by.scales == RowScales::kPowerOfSpread) {
      scale = power_below(largest, 1.0f);
    }
    const bool has_floor = by.values == nullptr && !is_float && by.scales != RowScales::kPowerBelow;
    is_usable = (has_floor ? largest > kSmallest : scale > 0.0f) && scale < INFINITY;
    if (!is_usable) return;
    if (by.scales == RowScales::kPowerAbove) {
      scale = power_above(scale);
    } else if (has_floor) {
      factor = limit / largest;
    }
  }
};

// Writes the codes of a group, times a number.
template <class T, class Round>
static inline void code_group(const T* x, int64_t size, const CodeScale& by, float limit,
                              Round&& rounded, float times, float* codes) {
  const auto write = [&](auto&& steps_of) {
    for_each_vector(size, [&](int64_t i, int64_t count) {
      store_upto(codes + i, rounded(steps_of(load_upto(x + i, count))) * broadcast(times), count);
    });
  };
  if (!by.is_usable) return write([](Vec) { return Vec{}; });
  if (by.factor > 0.0f) return write([&](Vec v) { return v * broadcast(by.factor); });
  write([&](Vec v) {
    return max_lanes(min_lanes(v / broadcast(by.scale), broadcast(limit)), broadcast(-limit));
  });
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

// How a row or a group becomes codes of int8, all with one scale: as many steps of it, and `zero` more.
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

// Writes a row as floats: codes, and the scales of their segments; or codes times scales.
template <class T>
static inline void code_row(const RowRounding& by, const GroupedWeight& w, const T* x, float* codes,
                            float* scales) {
  if (by.largest > 0.0f) {
    T bound;
    from_float(&bound, by.largest);
    const Vec most = broadcast(to_float(bound));
    for_each_vector(by.row_size, [&](int64_t i, int64_t count) {
      store_upto(codes + i, max_lanes(min_lanes(load_upto(x + i, count), most), -most), count);
    });
    RowRounding within = by;
    within.largest = 0.0f;
    return code_row(within, w, codes, codes, scales);
  }
  const bool are_codes = has_codes(by, w);
  // `code` writes the codes of some inputs times their scale, or 1, and returns the scale.
  const auto for_each_group = [&](auto&& code) {
    for (int64_t first = 0, segment = 0, size; first < by.row_size; first += size) {
      size = min_of(by.group_size, by.row_size - first);
      const float scale = code(x + first, size, codes + first);
      // A row that is padded is one group.
      const int64_t end = first + size < by.row_size ? first + size : w.num_inputs;
      for (; are_codes && segment < end; segment = segment_end(w, segment)) *scales++ = scale;
    }
  };
  if (by.is_shifted) {
    return for_each_group([&](const T* from, int64_t size, float* to) {
      const RowScale scale(by, [&] { return range_of(from, size); });
      const Vec times = broadcast(are_codes ? 1.0f : scale.scale);
      for_each_vector(size, [&](int64_t i, int64_t count) {
        const BitsVec steps = to_integers(scale.steps_of(load_upto(from + i, count)));
        const Vec code = __builtin_convertvector(bit_cast<IntVec>(steps), Vec);
        store_upto(to + i, code * times, count);
      });
      return scale.scale;
    });
  }
  with_rounding(by, [&](auto rounded, float limit) {
    for_each_group([&](const T* from, int64_t size, float* to) {
      const CodeScale scale(by, limit, [&] {
        if (by.scales != RowScales::kPowerOfSpread) return largest_magnitude(from, size);
        return scale_by_spread(from, size, static_cast<float>(by.group_size));
      });
      code_group(from, size, scale, limit, rounded, are_codes ? 1.0f : scale.scale, to);
      return scale.scale;
    });
  });
}

}  // namespace vllm_lite::VLLM_LITE_ISA
