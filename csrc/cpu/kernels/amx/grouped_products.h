// GEMMs of bfloat16 rows and grouped weights on tiles.
//
// Codes become bfloat16 numbers a span of kSegment inputs at a time, which is exact but for tables of
// other numbers; a segment's products are added up by the unit and scaled in float32 then. Any number of rows is multiplied on tiles
// or in the unit's own order of sums: a row's result depends on nothing else.
#pragma once

#include "cpu/kernels/amx/tiles.h"
#include "cpu/kernels/grouped_codes.h"

// Codes are looked up a word at a time.
#if VLLM_LITE_HAS_TILES && defined(__AVX512BW__)
#define VLLM_LITE_HAS_GROUPED_TILES 1
#else
#define VLLM_LITE_HAS_GROUPED_TILES 0
#endif

#if VLLM_LITE_HAS_GROUPED_TILES

namespace vllm_lite::VLLM_LITE_ISA {

// A weight whose table has bfloat16's numbers.
struct BriefWeight {
  GroupedWeight weight;
  alignas(64) float table[256];

  explicit BriefWeight(const GroupedWeight& w) : weight(w) {
    if (w.code_kind != CodeKind::kTable) return;
    const int size = w.bits == 8 ? 256 : 64;
    for (int i = 0; i < size; i += kLanes) {
      store(table + i, rounded_to(static_cast<const BFloat16*>(nullptr), load(w.table + i)));
    }
    weight.table = table;
  }
  BriefWeight(const BriefWeight&) = delete;
  BriefWeight& operator=(const BriefWeight&) = delete;
};

// Subnormal numbers count as zero while it lives, as they do for the unit.
class WithoutSubnormals {
 public:
  WithoutSubnormals() : before_(_mm_getcsr()) { _mm_setcsr(before_ | 0x8040); }
  ~WithoutSubnormals() { _mm_setcsr(before_); }
  WithoutSubnormals(const WithoutSubnormals&) = delete;
  WithoutSubnormals& operator=(const WithoutSubnormals&) = delete;

 private:
  unsigned before_;
};

// How far apart two inputs are whose numbers lie side by side in a tile's row: a word of codes holds
// inputs of each of its halves; elsewhere they are neighbours.
template <class Codes>
inline constexpr int kPairDistance = 1;
template <>
inline constexpr int kPairDistance<TableCodes<2>> = 8;
template <>
inline constexpr int kPairDistance<TableCodes<4>> = 4;

static inline int pair_distance(const GroupedWeight& w) {
  const bool is_table = w.code_kind == CodeKind::kTable;
  return is_table && w.bits == 2   ? kPairDistance<TableCodes<2>>
         : is_table && w.bits == 4 ? kPairDistance<TableCodes<4>>
                                   : 1;
}

// Up to so many rows are multiplied by numbers as they are made.
constexpr int kFewTileRows = 1;

// Adds such pairs of its inputs to a row of float32, which are bfloat16's.
static inline void pair_row(const GroupedWeight& w, float* row) {
  const int distance = pair_distance(w);
  alignas(64) uint16_t places[kUnit];
  for (int i = 0; i < kUnit; ++i) {
    places[i] = static_cast<uint16_t>(i / (2 * distance) * 2 * distance + i % 2 * distance +
                                      i % (2 * distance) / 2);
  }
  const __m512i order = _mm512_load_si512(places);
  uint16_t* to = reinterpret_cast<uint16_t*>(row + wide_row_floats(w) - padded_inputs(w) / 2);
  for (int64_t i = 0; i < padded_inputs(w); i += kUnit) {
    alignas(64) const HalfVec halves[2] = {
        narrow(bit_cast<BitsVec>(load(row + i)) >> 16),
        narrow(bit_cast<BitsVec>(load(row + i + kLanes)) >> 16)};
    _mm512_storeu_si512(to + i, _mm512_permutexvar_epi16(order, _mm512_load_si512(halves)));
  }
}

// Makes the pairs of a unit's inputs for half `h` of a panel: 16 rows that are kPanel pairs apart.
template <class Codes>
inline void make_pairs(const Codes& codes, const uint8_t* unit, int h, uint32_t* to) {
  const typename Codes::Reader reader = codes.reader(unit, h);
#pragma GCC unroll 16
  for (int k = 0; k < kUnit / 2; ++k) {
    const BitsVec low = bit_cast<BitsVec>(reader[2 * k]), high = bit_cast<BitsVec>(reader[2 * k + 1]);
    const BitsVec both = (low >> 16) | (high & 0xffff0000u);
    memcpy(to + k * kPanel, &both, sizeof both);
  }
}

// Codes of 2 and 4 bits as they lie, two inputs at once.
template <int kBits>
inline void look_up_pairs(const float* table, const uint8_t* unit, int h, uint32_t* to) {
  constexpr int kCodesOfHalf = 16 / kBits;
  const BitsVec first = bit_cast<BitsVec>(load(table)) >> 16;
  const BitsVec second = bit_cast<BitsVec>(load(table + kLanes)) >> 16;
  alignas(64) const HalfVec halves[2] = {narrow(first), narrow(second)};
  const __m512i numbers = _mm512_load_si512(halves);
  const uint8_t* lines = unit + h * kBits * kLine;
#pragma GCC unroll 4
  for (int line = 0; line < kBits; ++line) {
    const BitsVec words = load_words(lines + line * kLine);
#pragma GCC unroll 8
    for (int i = 0; i < kCodesOfHalf; ++i) {
      const __m512i codes = bit_cast<__m512i>(words >> (i * kBits));
      const __m512i pairs = _mm512_permutexvar_epi16(codes, numbers);
      _mm512_store_si512(to + (line * kCodesOfHalf + i) * kPanel, pairs);
    }
  }
}
template <>
inline void make_pairs(const TableCodes<4>& codes, const uint8_t* unit, int h, uint32_t* to) {
  look_up_pairs<4>(codes.from, unit, h, to);
}
template <>
inline void make_pairs(const TableCodes<2>& codes, const uint8_t* unit, int h, uint32_t* to) {
  look_up_pairs<2>(codes.from, unit, h, to);
}

// Sums of the upper rows by a panel's halves are tiles 0 and 1, of the lower ones 2 and 3.
class GroupedTiles {
 public:
  // Steps of 16 inputs, or of 32.
  explicit GroupedTiles(int64_t num_rows, int64_t step) : step_(step) {
    num_blocks_ = ceil_divide(num_rows, 2 * kTileHeight);
    tall_ = ceil_divide(num_rows, num_blocks_);
  }
  ~GroupedTiles() { release_tiles(); }
  GroupedTiles(const GroupedTiles&) = delete;
  GroupedTiles& operator=(const GroupedTiles&) = delete;

  int64_t num_blocks() const { return num_blocks_; }

  // Sets shapes for blocks of `count` rows.
  void shape(int64_t count) {
    if (count == shaped_) return;
    shaped_ = count;
    TileShapes shapes;
    for (int half = 0; half < 2; ++half) {
      const int64_t rows = half == 0 ? min_of<int64_t>(count, kTileHeight) : count - kTileHeight;
      shapes.set(kWeights + half, step_ / 2, kTileRowBytes);
      if (rows <= 0) continue;
      shapes.set(kX + half, rows, 2 * step_);
      shapes.set(2 * half, rows, kTileRowBytes);
      shapes.set(2 * half + 1, rows, kTileRowBytes);
    }
    configure_tiles(shapes);
  }

  // sums [rows, kPanel] = x by pairs [count / 2, kPanel]; rows of x are `stride` bytes apart.
  void multiply(const char* x, int64_t stride, const uint32_t* pairs, int64_t count,
                float* sums) const {
    shaped_ > kTileHeight ? multiply<true>(x, stride, pairs, count, sums)
                          : multiply<false>(x, stride, pairs, count, sums);
  }

 private:
  static constexpr int kX = 4, kWeights = 6;
  static constexpr int64_t kPairBytes = kPanel * 4;

  template <bool kIsTall>
  void multiply(const char* x, int64_t stride, const uint32_t* pairs, int64_t count,
                float* sums) const {
    zero_tile<0>();
    zero_tile<1>();
    if constexpr (kIsTall) {
      zero_tile<2>();
      zero_tile<3>();
    }
    for (int64_t i = 0; i < count; i += step_) {
      const uint32_t* weights = pairs + i / 2 * kPanel;
      load_tile<kWeights>(weights, kPairBytes);
      load_tile<kWeights + 1>(weights + kHalfPanel, kPairBytes);
      load_tile<kX>(x + 2 * i, stride);
      add_bfloat16_products<0, kX, kWeights>();
      add_bfloat16_products<1, kX, kWeights + 1>();
      if constexpr (kIsTall) {
        load_tile<kX + 1>(x + kTileHeight * stride + 2 * i, stride);
        add_bfloat16_products<2, kX + 1, kWeights>();
        add_bfloat16_products<3, kX + 1, kWeights + 1>();
      }
    }
    store_tile<0>(sums, kPairBytes);
    store_tile<1>(sums + kHalfPanel, kPairBytes);
    if constexpr (kIsTall) {
      store_tile<2>(sums + kTileHeight * kPanel, kPairBytes);
      store_tile<3>(sums + kTileHeight * kPanel + kHalfPanel, kPairBytes);
    }
  }

  int64_t step_, num_blocks_, tall_;
  int64_t shaped_ = 0;
};

// Adds a segment's sums [count, kPanel], scaled, to the totals.
static inline void add_scaled(const float* sums, int64_t count, const GroupScale (&of)[2],
                              float factor, bool has_minimum, const float* x_sum, int64_t x_stride,
                              float* totals) {
  for (int64_t r = 0; r < count; ++r, sums += kPanel, totals += kPanel) {
#pragma GCC unroll 2
    for (int k = 0; k < 2; ++k) {
      Vec total = multiply_add(load(sums + k * kLanes) * factor, of[k].scale,
                               load(totals + k * kLanes));
      if (has_minimum) {
        total = multiply_add(-of[k].minimum, broadcast(x_sum[r * x_stride]), total);
      }
      store(totals + k * kLanes, total);
    }
  }
}

// All rows by a panel; results [T, kPanel].
template <class Codes>
void multiply_on_tiles(const GroupedProduct& p, const Codes& codes, int64_t panel,
                       GroupedTiles& tiles, float* results) {
  static_assert(kLanes == kHalfPanel);
  constexpr int64_t kAhead = 8192;
  const GroupedWeight& w = *p.weight;
  const int64_t stride = wide_row_floats(w), unit_bytes = kUnit * kPanel * w.bits / 8;
  const uint8_t* unit = w.codes + panel * grouped_panel_bytes(w);
  const int64_t pairs_at = stride - padded_inputs(w) / 2;
  const bool has_minimum = has_minimums(w);
  alignas(64) uint32_t pairs[kSegment / 2 * kPanel];
  alignas(64) float sums[2 * kTileHeight * kPanel];
  int64_t segment = 0;
  for (int64_t span = 0; span < w.num_inputs; span += kSegment) {
    const int64_t span_end = min_of(span + kSegment, padded_inputs(w));
    for (int64_t i = span; i < span_end; i += kUnit, unit += unit_bytes) {
      for (int64_t line = 0; line < unit_bytes; line += kLine) {
        __builtin_prefetch(unit + kAhead + line);
      }
      make_pairs(codes, unit, 0, pairs + (i - span) / 2 * kPanel);
      make_pairs(codes, unit, 1, pairs + (i - span) / 2 * kPanel + kHalfPanel);
    }
    for (int64_t first = span; first < min_of(span_end, w.num_inputs); ++segment) {
      const int64_t end = segment_end(w, first);
      const int64_t group = first / w.group_size;
      const GroupScale of[2] = {group_scale(w, panel, group, 0), group_scale(w, panel, group, 1)};
      int64_t row = 0;
      for (int64_t blocks = tiles.num_blocks(); blocks > 0; --blocks) {
        const int64_t count = ceil_divide(p.num_rows - row, blocks);
        tiles.shape(count);
        const float* x = p.x + row * stride;
        tiles.multiply(reinterpret_cast<const char*>(x + pairs_at) + 2 * first, 4 * stride,
                       pairs + (first - span) / 2 * kPanel, end - first, sums);
        add_scaled(sums, count, of, Codes::kFactor, has_minimum, x + padded_inputs(w) + segment,
                   stride, results + row * kPanel);
        row += count;
      }
      first = end;
    }
  }
}

}  // namespace vllm_lite::VLLM_LITE_ISA

#endif
