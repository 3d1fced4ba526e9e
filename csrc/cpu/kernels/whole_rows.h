// Rows of int8 with one scale by weights of int8 with one scale an output. For grouped_linear.cpp only.
//
// Their sums are integers, exact in any order: tiles are as high as registers allow, and a row's
// result is the same in each.
#pragma once

#include "cpu/kernels/grouped_pairs.h"
#include "cpu/kernels/row_codes.h"

#if VLLM_LITE_HAS_GROUPED_PAIRS && !VLLM_LITE_HAS_TILES

namespace vllm_lite::VLLM_LITE_ISA {

constexpr int kWholeRows = 12, kFewWholeRows = 4;
// Inputs whose bytes are made at once, and those whose products fit 32 bits.
constexpr int64_t kWholeInputs = 2048, kMostWholeInputs = 1 << 16;

static inline bool is_whole(const GroupedWeight& w) {
  return has_quads(w) && num_groups(w) == 1 && !has_minimums(w) && w.num_inputs <= kMostWholeInputs;
}
static inline bool is_whole(const GroupedProduct& p) { return p.are_whole && is_whole(*p.weight); }
static inline bool is_whole(const WidenRows& p) {
  return p.rounding.number == DType::kInt8 && p.rounding.group_size >= p.weight->num_inputs &&
         is_whole(*p.weight);
}

static inline float largest_of(const float* x, int64_t size) { return largest_magnitude(x, size); }
// As the bits of numbers without their signs are in order, 32 at once.
static inline float largest_of(const BFloat16* x, int64_t size) {
  __m512i largest = _mm512_setzero_si512();
  for (int64_t i = 0; i < size; i += 32) {
    const __mmask32 inside = size - i < 32 ? (1u << (size - i)) - 1 : ~0u;
    const __m512i bits = _mm512_and_si512(_mm512_maskz_loadu_epi16(inside, x + i),
                                          _mm512_set1_epi16(0x7fff));
    largest = _mm512_max_epi16(largest, bits);
  }
  const __m512i upper = _mm512_srli_epi32(largest, 16);
  const __m512i lower = _mm512_and_si512(largest, _mm512_set1_epi32(0xffff));
  return bit_cast<float>(_mm512_reduce_max_epi32(_mm512_max_epi32(upper, lower)) << 16);
}

// What follows a row's bytes.
struct WholeRow {
  float scale;
  int32_t excess;  // what sums begin with
};
// Rows are close together: tiles of them are read again for each panel.
static inline int64_t bytes_of_whole_row(const GroupedWeight& w) {
  return padded_inputs(w) + kLine;
}
static inline WholeRow whole_row(const GroupedWeight& w, const char* row) {
  WholeRow of;
  memcpy(&of, row + padded_inputs(w), sizeof of);
  return of;
}

// Writes row `row` of x: its codes as bytes and what follows them.
template <class T>
static inline void make_whole_row(const WidenRows& p, const T* x, int64_t row) {
  const GroupedWeight& w = *p.weight;
  const int64_t padded = padded_inputs(w);
  char* bytes = reinterpret_cast<char*>(p.rows) + row * bytes_of_whole_row(w);
  __m512i total = _mm512_setzero_si512();
  const auto code = [&](auto&& scaled) {
    for_each_vector(w.num_inputs, [&](int64_t i, int64_t count) {
      const __m512i codes = _mm512_cvtps_epi32(scaled(load_upto(x + i, count)));
      total = _mm512_add_epi32(total, codes);
      _mm_storeu_si128(reinterpret_cast<__m128i*>(bytes + i), _mm512_cvtepi32_epi8(codes));
    });
  };
  float scale;
  if (p.rounding.scale != nullptr) {
    scale = *p.rounding.scale;
    const Vec most = broadcast(127.0f);
    code([&](Vec v) { return max_lanes(min_lanes(v / broadcast(scale), most), -most); });
  } else {
    const float largest = largest_of(x, w.num_inputs);
    // What is not finite makes the scale so, whatever its codes are.
    const bool is_usable = largest > kSmallest && largest < INFINITY;
    const Vec factor = broadcast(is_usable ? 127.0f / largest : 0.0f);
    code([&](Vec v) { return v * factor; });
    scale = largest / 127.0f;
  }
  memset(bytes + w.num_inputs, 0, padded - w.num_inputs);
  const uint32_t sum = static_cast<uint32_t>(_mm512_reduce_add_epi32(total));
  const WholeRow of = {scale, static_cast<int32_t>(-128u * sum)};
  memcpy(bytes + padded, &of, sizeof of);
}

// A panel's outputs: sums of a row times its scale and theirs, and the bias.
template <class Out>
struct WholeOutputs {
  Out* first;
  int64_t stride, count;
  Vec scales[kPanelVectors], bias[kPanelVectors];

  WholeOutputs(const GroupedProduct& p, int64_t panel)
      : first(static_cast<Out*>(p.out) + panel * kPanel),
        stride(p.out_stride),
        count(min_of(kPanel, p.weight->num_outputs - panel * kPanel)) {
    for (int v = 0; v < kPanelVectors; ++v) {
      scales[v] = group_scale<QuadCodes>(*p.weight, panel, panel, v).scale;
      bias[v] = Vec{};
      const int64_t at = v * kLanes, left = count - at;
      if (p.bias != nullptr && left > 0) {
        bias[v] = load_upto(p.bias + panel * kPanel + at, min_of<int64_t>(left, kLanes));
      }
    }
  }
  [[gnu::always_inline]] void store_row(int64_t row, float scale, __m512i low, __m512i high) const {
    Out* out = first + row * stride;
    const Vec of_row = broadcast(scale);
    const Vec sums[] = {bit_cast<Vec>(_mm512_cvtepi32_ps(low)) * of_row,
                        bit_cast<Vec>(_mm512_cvtepi32_ps(high)) * of_row};
    for (int v = 0; v < kPanelVectors && v * kLanes < count; ++v) {
      store_upto(out + v * kLanes, multiply_add(sums[v], scales[v], bias[v]),
                 min_of<int64_t>(count - v * kLanes, kLanes));
    }
  }
};

// The codes of the next panel, of which each tile asks for its part: reading goes on meanwhile.
struct Ahead {
  const uint8_t* at;
  int64_t step;
};

// Sums over `num_quads` times four inputs: from begin(row, vector) on, given to end(row, both).
template <int kRows, class Begin, class End>
[[gnu::always_inline]] static inline void add_quads(const uint32_t* quads, int64_t num_quads,
                                                    const char* x, int64_t stride, Ahead ahead,
                                                    Begin&& begin, End&& end) {
  __m512i sums[kRows][kPanelVectors];
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r) sums[r][0] = begin(r, 0), sums[r][1] = begin(r, 1);
  for (int64_t i = 0; i < num_quads; ++i, quads += kPanel, x += 4, ahead.at += ahead.step) {
    __builtin_prefetch(ahead.at, 0, 2);
    const __m512i first = _mm512_load_si512(quads), second = _mm512_load_si512(quads + kLanes);
#pragma GCC unroll 12
    for (int r = 0; r < kRows; ++r) {
      int32_t codes;
      memcpy(&codes, x + r * stride, sizeof codes);
      const __m512i four = _mm512_set1_epi32(codes);
      sums[r][0] = _mm512_dpbusd_epi32(sums[r][0], first, four);
      sums[r][1] = _mm512_dpbusd_epi32(sums[r][1], second, four);
    }
  }
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r) end(r, sums[r][0], sums[r][1]);
}

template <class Out>
static inline void multiply_whole(const GroupedProduct& p, int64_t panel) {
  const GroupedWeight& w = *p.weight;
  const int64_t stride = bytes_of_whole_row(w), unit_bytes = kUnit * kPanel;
  const uint8_t* unit = w.codes + panel * grouped_panel_bytes(w);
  const char* rows = reinterpret_cast<const char*>(p.x);
  const WholeOutputs<Out> outputs(p, panel);
  alignas(64) uint32_t quads[kWholeInputs / 4 * kPanel];
  alignas(64) int32_t before[kGroupedRows][kPanel];  // the sums of earlier inputs
  for (int64_t begin = 0; begin < w.num_inputs; begin += kWholeInputs) {
    const int64_t end = min_of(begin + kWholeInputs, padded_inputs(w));
    for (int64_t i = begin; i < end; i += kUnit, unit += unit_bytes) {
      make_numbers<kUnit / 4>(QuadCodes{}, unit, 0, kPanelVectors, quads + (i - begin) / 4 * kPanel);
    }
    const int64_t num_tiles = ceil_divide(p.num_rows, kWholeRows);
    Ahead ahead = {unit, 4 * kPanel / num_tiles};
    int64_t row = 0;
    for (int64_t tiles = num_tiles; tiles > 0; --tiles) {
      const int64_t height = ceil_divide(p.num_rows - row, tiles);
      const char* x = rows + row * stride;
      with_constant<kWholeRows>(height, [&](auto count) {
        add_quads<decltype(count)::value>(
            quads, (end - begin) / 4, x + begin, stride, ahead,
            [&](int r, int v) {
              return begin > 0 ? _mm512_load_si512(before[row + r] + v * kLanes)
                               : _mm512_set1_epi32(whole_row(w, x + r * stride).excess);
            },
            [&](int r, __m512i low, __m512i high) {
              if (end < w.num_inputs) {
                _mm512_store_si512(before[row + r], low);
                _mm512_store_si512(before[row + r] + kLanes, high);
              } else {
                outputs.store_row(row + r, whole_row(w, x + r * stride).scale, low, high);
              }
            });
      });
      row += height;
      ahead.at += ahead.step * (end - begin) / 4;
    }
  }
}

// Few rows: codes are multiplied as they come.
template <int kRows, class Out>
static inline void multiply_few_whole(const GroupedProduct& p, int64_t panel) {
  const GroupedWeight& w = *p.weight;
  const int64_t stride = bytes_of_whole_row(w), unit_bytes = kUnit * kPanel;
  const uint8_t* unit = w.codes + panel * grouped_panel_bytes(w);
  const char* rows = reinterpret_cast<const char*>(p.x);
  const QuadCodes codes;
  // Even and odd quads apart, as one multiplication waits for the one before.
  __m512i sums[2][kRows][kPanelVectors];
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < kPanelVectors; ++v) {
      sums[0][r][v] = _mm512_set1_epi32(whole_row(w, rows + r * stride).excess);
      sums[1][r][v] = _mm512_setzero_si512();
    }
  }
  const char* x = rows;
  for (int64_t i = 0; i < w.num_inputs; i += kUnit, unit += unit_bytes, x += kUnit) {
    const QuadCodes::Reader readers[] = {codes.reader(unit, 0), codes.reader(unit, 1)};
#pragma GCC unroll 8
    for (int quad = 0; quad < kUnit / 4; ++quad) {
#pragma GCC unroll 2
      for (int64_t line = 2 * quad; line < 2 * quad + 2; ++line) {
        __builtin_prefetch(unit + kFarAhead + line * kLine, 0, 2);
        __builtin_prefetch(unit + kNearAhead + line * kLine);
      }
      const __m512i first = bit_cast<__m512i>(readers[0][quad]);
      const __m512i second = bit_cast<__m512i>(readers[1][quad]);
      auto& sum = sums[quad % 2];
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
        int32_t four;
        memcpy(&four, x + r * stride + 4 * quad, sizeof four);
        sum[r][0] = _mm512_dpbusd_epi32(sum[r][0], first, _mm512_set1_epi32(four));
        sum[r][1] = _mm512_dpbusd_epi32(sum[r][1], second, _mm512_set1_epi32(four));
      }
    }
  }
  const WholeOutputs<Out> outputs(p, panel);
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
    outputs.store_row(r, whole_row(w, rows + r * stride).scale,
                      _mm512_add_epi32(sums[0][r][0], sums[1][r][0]),
                      _mm512_add_epi32(sums[0][r][1], sums[1][r][1]));
  }
}

// Rows by a panel, to the end.
static inline void multiply_whole(const GroupedProduct& p, int64_t panel) {
  with_type(p.out_dtype, [&](auto number) {
    using Out = decltype(number);
    if (p.num_rows > kFewWholeRows) return multiply_whole<Out>(p, panel);
    with_constant<kFewWholeRows>(p.num_rows, [&](auto rows) {
      multiply_few_whole<decltype(rows)::value, Out>(p, panel);
    });
  });
}

}  // namespace vllm_lite::VLLM_LITE_ISA

#endif
