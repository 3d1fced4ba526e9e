// Rows of int8 with one scale by weights of int8 with one scale an output. For grouped_linear.cpp only.
//
// Their sums are integers, exact in any order: tiles are as high as registers allow, and a row's
// result is the same in each.
#pragma once

#include "cpu/kernels/amx/grouped_products.h"
#include "cpu/kernels/row_codes.h"
#include "cpu/kernels/store_rows.h"

// Four bytes are multiplied at once.
#if VLLM_LITE_HAS_GROUPED_PAIRS && defined(__AVX512VNNI__)
#define VLLM_LITE_HAS_WHOLE_ROWS 1
#else
#define VLLM_LITE_HAS_WHOLE_ROWS 0
#endif

#if VLLM_LITE_HAS_WHOLE_ROWS

namespace vllm_lite::VLLM_LITE_ISA {

// Rows of a tile, up to so many of which are multiplied by codes as they come, and inputs whose bytes
// are made at once.
#if VLLM_LITE_HAS_GROUPED_TILES
constexpr int kWholeRows = 2 * kTileHeight, kFewWholeRows = 12;
constexpr int64_t kWholeInputs = 512;
#else
constexpr int kWholeRows = 12, kFewWholeRows = 12;
constexpr int64_t kWholeInputs = 2048;
#endif
// Whose products fit 32 bits.
constexpr int64_t kMostWholeInputs = 1 << 16;
constexpr int64_t kLineQuads = kLine / 4;  // of a step on tiles

static inline bool is_whole(const GroupedWeight& w) {
  return w.code_kind == CodeKind::kInt8 && num_groups(w) == 1 && !has_minimums(w) &&
         w.num_inputs <= kMostWholeInputs;
}
static inline bool is_whole(const RowRounding& rounding, const GroupedWeight& w) {
  const bool is_plain = rounding.largest == 0.0f && w.permutation == nullptr;
  return rounding.number == DType::kInt8 && rounding.group_size >= w.num_inputs && is_plain &&
         is_whole(w);
}

// As range_of, 32 at once: of bits, negative numbers are the greatest without signs.
static inline Range whole_range(const float* x, int64_t size) { return range_of(x, size); }
static inline Range whole_range(const BFloat16* x, int64_t size) {
  __m512i least = _mm512_setzero_si512(), greatest = least;
  for (int64_t i = 0; i < size; i += 32) {
    const __mmask32 inside = size - i < 32 ? (1u << (size - i)) - 1 : ~0u;
    const __m512i bits = _mm512_maskz_loadu_epi16(inside, x + i);
    least = _mm512_max_epu16(least, bits), greatest = _mm512_max_epi16(greatest, bits);
  }
  const auto largest = [](__m512i v) {
    const __m512i upper = _mm512_srli_epi32(v, 16);
    const __m512i lower = _mm512_and_si512(v, _mm512_set1_epi32(0xffff));
    return _mm512_reduce_max_epu32(_mm512_max_epu32(upper, lower)) << 16;
  };
  const uint32_t negative = largest(least);
  return {bit_cast<float>(negative >> 31 ? negative : 0), bit_cast<float>(largest(greatest))};
}

// What follows a row's bytes.
struct WholeRow {
  float scale;
  int32_t excess;  // what sums begin with
  float zero;      // the code of zero: sums hold that many times the sum of the weights besides
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

// Inputs 0, 2, 4, ... and 1, 3, 5, ... of those of 32 that are inside.
struct EvenAndOdd {
  Vec even, odd;
};
static inline EvenAndOdd load_32(const BFloat16* x, __mmask32 inside) {
  const BitsVec both = bit_cast<BitsVec>(_mm512_maskz_loadu_epi16(inside, x));
  return {bit_cast<Vec>(both << 16), bit_cast<Vec>(both & 0xffff0000u)};
}
static inline EvenAndOdd load_32(const float* x, __mmask32 inside) {
  const Vec low = _mm512_maskz_loadu_ps(static_cast<__mmask16>(inside), x);
  const Vec high = _mm512_maskz_loadu_ps(static_cast<__mmask16>(inside >> 16), x + kLanes);
  const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
  return {_mm512_permutex2var_ps(low, even, high), _mm512_permutex2var_ps(low, odd, high)};
}

// Writes row `row` of x: its codes as bytes and what follows them.
template <class T>
static inline void make_whole_row(const WidenRows& p, const T* x, int64_t row) {
  const GroupedWeight& w = *p.weight;
  const int64_t padded = padded_inputs(w);
  char* bytes = reinterpret_cast<char*>(p.rows) + row * bytes_of_whole_row(w);
  const RowScale by(p.rounding, [&] { return whole_range(x, w.num_inputs); });
  // By a row's own range, steps fit words, and what rounding makes too large saturates as a byte.
  const auto to_steps = [&](Vec v) {
    return _mm512_cvtps_epi32(by.is_given ? by.steps_of(v) : v * broadcast(by.factor));
  };
  const __m512i zero = _mm512_set1_epi16(static_cast<int16_t>(by.zero));
  const __m256i ones = _mm256_set1_epi8(1);
  __m256i total = _mm256_setzero_si256();
  for (int64_t i = 0; i < padded; i += 32) {
    const int64_t left = w.num_inputs - i;
    const __mmask32 inside = left < 32 ? (1u << left) - 1 : ~0u;
    const EvenAndOdd of = load_32(x + i, inside);
    const __m512i steps = _mm512_mask_blend_epi16(0xaaaaaaaa, to_steps(of.even),
                                                  _mm512_slli_epi32(to_steps(of.odd), 16));
    const __m512i codes = _mm512_maskz_add_epi16(inside, steps, zero);
    const __m256i narrow = _mm512_cvtsepi16_epi8(codes);
    total = _mm256_dpbusd_epi32(total, ones, narrow);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(bytes + i), narrow);
  }
  const __m512i sums = _mm512_zextsi256_si512(total);
  const uint32_t sum = static_cast<uint32_t>(_mm512_reduce_add_epi32(sums));
  const WholeRow of = {by.scale, static_cast<int32_t>(-128u * sum), by.zero};
  memcpy(bytes + padded, &of, sizeof of);
}

// Sums of a panel's weights, from those of bytes that are more by 128. Bytes behind the last input
// are zero.
struct WeightSums {
  __m512i of_bytes[kPanelVectors] = {};

  [[gnu::always_inline]] void add(__m512i first, __m512i second) {
    const __m512i ones = _mm512_set1_epi8(1);
    of_bytes[0] = _mm512_dpbusd_epi32(of_bytes[0], first, ones);
    of_bytes[1] = _mm512_dpbusd_epi32(of_bytes[1], second, ones);
  }
  Vec of(int v, int64_t num_inputs) const {
    const __m512i excess = _mm512_set1_epi32(static_cast<int>(128 * num_inputs));
    return bit_cast<Vec>(_mm512_cvtepi32_ps(_mm512_sub_epi32(of_bytes[v], excess)));
  }
};

// A panel's outputs: a row's sums, less the code of zero times the weights' sums, times its scale and
// theirs, and the bias.
template <bool kShifted, class Out>
struct WholeOutputs {
  Out* first;
  int64_t stride, count;
  Vec scales[kPanelVectors], bias[kPanelVectors], weights[kPanelVectors];

  WholeOutputs(const GroupedProduct& p, int64_t panel, const WeightSums& sums)
      : first(static_cast<Out*>(p.out) + panel * kPanel),
        stride(p.out_stride),
        count(min_of(kPanel, p.weight->num_outputs - panel * kPanel)) {
#pragma GCC unroll 2
    for (int v = 0; v < kPanelVectors; ++v) {
      scales[v] = group_scale<QuadCodes>(*p.weight, panel, panel, v).scale;
      weights[v] = sums.of(v, p.weight->num_inputs);
      bias[v] = Vec{};
      const int64_t at = v * kLanes, left = count - at;
      if (p.bias != nullptr && left > 0) {
        bias[v] = load_upto(p.bias + panel * kPanel + at, min_of<int64_t>(left, kLanes));
      }
    }
  }
  [[gnu::always_inline]] Vec output(WholeRow of, __m512i sum, int v) const {
    Vec total = to_floats(bit_cast<IntVec>(sum));
    if constexpr (kShifted) total = multiply_add(broadcast(-of.zero), weights[v], total);
    return multiply_add(total * broadcast(of.scale), scales[v], bias[v]);
  }
  [[gnu::always_inline]] void store_row(int64_t row, WholeRow of, __m512i low, __m512i high) const {
    Out* out = first + row * stride;
    store_sums(out, output(of, low, 0), min_of<int64_t>(count, kLanes));
    if (count > kLanes) store_sums(out + kLanes, output(of, high, 1), count - kLanes);
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

template <bool kShifted, class Out>
static inline void multiply_whole(const GroupedProduct& p, int64_t panel) {
  const GroupedWeight& w = *p.weight;
  const int64_t stride = bytes_of_whole_row(w), unit_bytes = kUnit * kPanel;
  const uint8_t* unit = w.codes + panel * grouped_panel_bytes(w);
  const char* rows = reinterpret_cast<const char*>(p.x);
  WeightSums weights;
  alignas(64) uint32_t quads[kWholeInputs / 4 * kPanel];
  alignas(64) int32_t before[kGroupedRows][kPanel];  // the sums of earlier inputs
#if VLLM_LITE_HAS_GROUPED_TILES
  GroupedTiles tiles_of_rows(p.num_rows, kUnit);
#endif
  for (int64_t begin = 0; begin < w.num_inputs; begin += kWholeInputs) {
    const int64_t end = min_of(begin + kWholeInputs, padded_inputs(w));
    const int64_t num_quads = (end - begin) / 4;
    for (uint32_t* to = quads; to < quads + num_quads * kPanel; unit += unit_bytes) {
      const QuadCodes::Reader readers[] = {QuadCodes{}.reader(unit, 0), QuadCodes{}.reader(unit, 1)};
#pragma GCC unroll 8
      for (int quad = 0; quad < kUnit / 4; ++quad, to += kPanel) {
        const __m512i first = bit_cast<__m512i>(readers[0][quad]);
        const __m512i second = bit_cast<__m512i>(readers[1][quad]);
        if constexpr (kShifted) weights.add(first, second);
        _mm512_store_si512(to, first), _mm512_store_si512(to + kLanes, second);
      }
    }
#if VLLM_LITE_HAS_GROUPED_TILES
    // Up to a whole step: what x has there is no input.
    if (num_quads % kLineQuads > 0) {
      memset(quads + num_quads * kPanel, 0, kLineQuads / 2 * kPanel * sizeof *quads);
    }
#endif
    const bool is_last = end >= w.num_inputs;
    const WholeOutputs<kShifted, Out> outputs(p, panel, weights);
    const int64_t num_tiles = ceil_divide(p.num_rows, kWholeRows);
    Ahead ahead = {unit, 4 * kPanel / num_tiles};
    int64_t row = 0;
    for (int64_t tiles = num_tiles; tiles > 0; --tiles) {
      const int64_t height = ceil_divide(p.num_rows - row, tiles);
      const char* x = rows + row * stride;
#if VLLM_LITE_HAS_GROUPED_TILES
      auto ask = [at = ahead.at, size = kLineQuads * ahead.step]() mutable {
        for (const uint8_t* stop = at + size; at < stop; at += kLine) __builtin_prefetch(at, 0, 2);
      };
      tiles_of_rows.shape(height);
      tiles_of_rows.multiply_bytes(x + begin, stride, quads, end - begin, begin > 0, ask,
                                   before[row]);
      for (int64_t r = 0; is_last && r < height; ++r) {
        const WholeRow of = whole_row(w, x + r * stride);
        const __m512i excess = _mm512_set1_epi32(of.excess);
        const int32_t* sums = before[row + r];
        outputs.store_row(row + r, of, _mm512_add_epi32(_mm512_load_si512(sums), excess),
                          _mm512_add_epi32(_mm512_load_si512(sums + kLanes), excess));
      }
#else
      with_constant<kWholeRows>(height, [&](auto count) {
        add_quads<decltype(count)::value>(
            quads, num_quads, x + begin, stride, ahead,
            [&](int r, int v) {
              return begin > 0 ? _mm512_load_si512(before[row + r] + v * kLanes)
                               : _mm512_set1_epi32(whole_row(w, x + r * stride).excess);
            },
            [&](int r, __m512i low, __m512i high) {
              if (is_last) {
                outputs.store_row(row + r, whole_row(w, x + r * stride), low, high);
              } else {
                _mm512_store_si512(before[row + r], low);
                _mm512_store_si512(before[row + r] + kLanes, high);
              }
            });
      });
#endif
      row += height;
      ahead.at += ahead.step * num_quads;
    }
  }
}

// Few rows: codes are multiplied as they come.
template <bool kShifted, class Out, int kRows>
static inline void multiply_few_whole(const GroupedProduct& p, int64_t panel) {
  const GroupedWeight& w = *p.weight;
  const int64_t stride = bytes_of_whole_row(w), unit_bytes = kUnit * kPanel;
  const uint8_t* unit = w.codes + panel * grouped_panel_bytes(w);
  const char* rows = reinterpret_cast<const char*>(p.x);
  const QuadCodes codes;
  // One multiplication waits for the one before: quads of few rows in turn have sums of their own.
  constexpr int kSets = kRows <= 4 ? 2 : 1;
  __m512i sums[kSets][kRows][kPanelVectors];
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < kPanelVectors; ++v) {
      sums[0][r][v] = _mm512_set1_epi32(whole_row(w, rows + r * stride).excess);
      if constexpr (kSets > 1) sums[1][r][v] = _mm512_setzero_si512();
    }
  }
  WeightSums weights;
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
      if constexpr (kShifted) weights.add(first, second);
      auto& sum = sums[quad % kSets];
#pragma GCC unroll 12
      for (int r = 0; r < kRows; ++r) {
        int32_t four;
        memcpy(&four, x + r * stride + 4 * quad, sizeof four);
        sum[r][0] = _mm512_dpbusd_epi32(sum[r][0], first, _mm512_set1_epi32(four));
        sum[r][1] = _mm512_dpbusd_epi32(sum[r][1], second, _mm512_set1_epi32(four));
      }
    }
  }
  const WholeOutputs<kShifted, Out> outputs(p, panel, weights);
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r) {
    auto& sum = sums[0][r];
    if constexpr (kSets > 1) {
      sum[0] = _mm512_add_epi32(sum[0], sums[1][r][0]);
      sum[1] = _mm512_add_epi32(sum[1], sums[1][r][1]);
    }
    outputs.store_row(r, whole_row(w, rows + r * stride), sum[0], sum[1]);
  }
}

template <bool kShifted, class Out>
static inline void multiply_whole_rows(const GroupedProduct& p, int64_t panel) {
  if (p.num_rows > kFewWholeRows) return multiply_whole<kShifted, Out>(p, panel);
  with_constant<kFewWholeRows>(p.num_rows, [&](auto rows) {
    multiply_few_whole<kShifted, Out, decltype(rows)::value>(p, panel);
  });
}

// Rows by a panel, to the end.
static inline void multiply_whole(const GroupedProduct& p, int64_t panel) {
  with_type(p.out_dtype, [&](auto number) {
    using Out = decltype(number);
    if (p.rounding.is_shifted) return multiply_whole_rows<true, Out>(p, panel);
    multiply_whole_rows<false, Out>(p, panel);
  });
}

}  // namespace vllm_lite::VLLM_LITE_ISA

#endif
