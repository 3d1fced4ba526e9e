// GEMMs of bfloat16 rows and grouped weights on tiles.
//
// Codes become bfloat16 pairs a span of kSegment inputs at a time; a segment's products are added up
// by the unit and scaled in float32 then. Any number of rows is multiplied on tiles or in the unit's
// own order of sums: a row's result depends on nothing else.
#pragma once

#include "cpu/kernels/grouped_pairs.h"

#if VLLM_LITE_HAS_TILES && VLLM_LITE_HAS_GROUPED_PAIRS
#define VLLM_LITE_HAS_GROUPED_TILES 1
#else
#define VLLM_LITE_HAS_GROUPED_TILES 0
#endif

#if VLLM_LITE_HAS_GROUPED_TILES

namespace vllm_lite::VLLM_LITE_ISA {

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

// Up to so many rows are multiplied by numbers as they are made.
constexpr int kFewTileRows = 1;

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

  // sums [rows, kPanel] = x by pairs [count / 2, kPanel]; rows of x are `stride` bytes apart. Calls
  // before_step() before each step.
  template <class BeforeStep>
  void multiply(const char* x, int64_t stride, const uint32_t* pairs, int64_t count,
                BeforeStep&& before_step, float* sums) const {
    multiply_words<Pairs>(x, stride, pairs, count / 2, false, before_step, sums);
  }

  // sums [rows, kPanel] = bytes of x by unsigned ones [count / 4, kPanel], which are zeros up to a whole
  // step; plus `sums` themselves if has_sums.
  template <class BeforeStep>
  void multiply_bytes(const char* x, int64_t stride, const uint32_t* quads, int64_t count,
                      bool has_sums, BeforeStep&& before_step, int32_t* sums) const {
    multiply_words<Quads>(x, stride, quads, count / 4, has_sums, before_step, sums);
  }

 private:
  static constexpr int kX = 4, kWeights = 6;
  static constexpr int64_t kLineBytes = kPanel * 4;

  struct Pairs {
    template <int kSums, int kA, int kB>
    static void add() {
      add_bfloat16_products<kSums, kA, kB>();
    }
  };
  struct Quads {
    template <int kSums, int kA, int kB>
    static void add() {
      add_byte_products<kSums, kA, kB>();
    }
  };

  template <class Products, class BeforeStep, class Sum>
  void multiply_words(const char* x, int64_t stride, const uint32_t* weights, int64_t num_words,
                      bool has_sums, BeforeStep&& before_step, Sum* sums) const {
    const auto multiply = [&](auto is_tall) {
      multiply_block<Products, decltype(is_tall)::value>(x, stride, weights, num_words, has_sums,
                                                         before_step, sums);
    };
    shaped_ > kTileHeight ? multiply(std::true_type{}) : multiply(std::false_type{});
  }

  template <class Products, bool kIsTall, class BeforeStep, class Sum>
  void multiply_block(const char* x, int64_t stride, const uint32_t* weights, int64_t num_words,
                      bool has_sums, BeforeStep&& before_step, Sum* sums) const {
    Sum* const lower = sums + kTileHeight * kPanel;
    if (has_sums) {
      load_tile<0>(sums, kLineBytes);
      load_tile<1>(sums + kHalfPanel, kLineBytes);
      if constexpr (kIsTall) {
        load_tile<2>(lower, kLineBytes);
        load_tile<3>(lower + kHalfPanel, kLineBytes);
      }
    } else {
      zero_tile<0>();
      zero_tile<1>();
      if constexpr (kIsTall) {
        zero_tile<2>();
        zero_tile<3>();
      }
    }
    const int64_t step = step_ / 2;
    for (int64_t i = 0; i < num_words; i += step, weights += step * kPanel) {
      before_step();
      load_tile<kWeights>(weights, kLineBytes);
      load_tile<kWeights + 1>(weights + kHalfPanel, kLineBytes);
      load_tile<kX>(x + 4 * i, stride);
      Products::template add<0, kX, kWeights>();
      Products::template add<1, kX, kWeights + 1>();
      if constexpr (kIsTall) {
        load_tile<kX + 1>(x + kTileHeight * stride + 4 * i, stride);
        Products::template add<2, kX + 1, kWeights>();
        Products::template add<3, kX + 1, kWeights + 1>();
      }
    }
    store_tile<0>(sums, kLineBytes);
    store_tile<1>(sums + kHalfPanel, kLineBytes);
    if constexpr (kIsTall) {
      store_tile<2>(lower, kLineBytes);
      store_tile<3>(lower + kHalfPanel, kLineBytes);
    }
  }

  int64_t step_, num_blocks_, tall_;
  int64_t shaped_ = 0;
};

// Adds a segment's sums [count, kPanel], scaled, to the totals.
static inline void add_scaled(const float* sums, int64_t count, const GroupScale (&of)[2],
                              bool has_minimum, SegmentOfX x, float* totals) {
  for (int64_t r = 0; r < count; ++r, sums += kPanel, totals += kPanel) {
#pragma GCC unroll 2
    for (int k = 0; k < 2; ++k) {
      const Vec scaled = load(sums + k * kLanes) * broadcast(x.scale[r * x.stride]);
      Vec total = multiply_add(scaled, of[k].scale, load(totals + k * kLanes));
      if (has_minimum) {
        total = multiply_add(-of[k].minimum, broadcast(x.sum[r * x.stride]), total);
      }
      store(totals + k * kLanes, total);
    }
  }
}

// A panel's pairs, made a span of kSegment inputs ahead of the products, for a vector of a unit at a
// time between their steps: tiles and vectors are busy together. Without steps to hide behind they are
// made when they are needed.
template <class Codes>
class PairsAhead {
 public:
  PairsAhead(const GroupedWeight& w, const PairCodes<Codes>& codes, int64_t panel,
             int64_t steps_of_span)
      : codes_(codes),
        unit_(w.codes + panel * grouped_panel_bytes(w)),
        unit_bytes_(kUnit * kPanel * w.bits / 8),
        units_left_(padded_inputs(w) / kUnit),
        steps_of_span_(steps_of_span) {
    if (steps_of_span_ > 0) begin_span();
  }

  // Those of the next span.
  const uint32_t* next() {
    if (steps_of_span_ == 0) {
      begin_span();
      for (; left_ > 0; left_ -= 2) make(0, 2);
      return pairs_[0];
    }
    while (left_ > 0) make_next();
    const uint32_t* made = pairs_[is_second_];
    is_second_ = !is_second_;
    begin_span();
    return made;
  }

  void step() {
    for (int64_t i = 0; left_ > 0 && i < per_step_; ++i) make_next();
  }

 private:
  void begin_span() {
    const int64_t num_units = min_of<int64_t>(units_left_, kSegment / kUnit);
    units_left_ -= num_units;
    left_ = 2 * num_units;
    if (steps_of_span_ > 0) per_step_ = ceil_divide(left_, steps_of_span_);
    to_ = pairs_[is_second_];
  }

  void make_next() {
    const int v = left_-- % 2;
    make(v, v + 1);
  }

  // The vectors from `begin` to `end` of a unit, of which there are two.
  void make(int begin, int end) {
    constexpr int64_t kAhead = 8192;
    for (int64_t line = 0; begin == 0 && line < unit_bytes_; line += kLine) {
      __builtin_prefetch(unit_ + kAhead + line);
    }
    make_numbers<kUnit / 2>(codes_, unit_, begin, end, to_);
    if (end < 2) return;
    unit_ += unit_bytes_;
    to_ += kUnit / 2 * kPanel;
  }

  const PairCodes<Codes>& codes_;
  const uint8_t* unit_;
  int64_t unit_bytes_, units_left_, steps_of_span_;
  int64_t left_ = 0, per_step_ = 0;  // vectors of the span that is made
  alignas(64) uint32_t pairs_[2][kSegment / 2 * kPanel];
  bool is_second_ = false;
  uint32_t* to_ = nullptr;
};

// All rows by a panel; results [T, kPanel].
template <class Codes>
void multiply_on_tiles(const GroupedProduct& p, const PairCodes<Codes>& codes, int64_t panel,
                       GroupedTiles& tiles, float* results) {
  static_assert(kLanes == kHalfPanel);
  const GroupedWeight& w = *p.weight;
  const int64_t stride = wide_row_floats(w), pairs_at = pairs_of_row(w);
  const int64_t groups_before = panel * num_groups(w);
  const int64_t num_blocks = tiles.num_blocks();
  const bool has_minimum = has_minimums(w);
  alignas(64) float sums[2 * kTileHeight * kPanel];
  SegmentOfX of_x(p);
  PairsAhead<Codes> ahead(w, codes, panel,
                          num_blocks > 1 ? num_blocks * (kSegment / step_of(w)) : 0);
  for (int64_t span = 0; span < w.num_inputs; span += kSegment) {
    const uint32_t* pairs = ahead.next();
    for (int64_t first = span; first < min_of(span + kSegment, w.num_inputs); ++of_x) {
      const int64_t group = first / w.group_size, end = segment_end(w, first, group);
      const GroupScale of[2] = {group_scale<PairCodes<Codes>>(w, panel, groups_before + group, 0),
                                group_scale<PairCodes<Codes>>(w, panel, groups_before + group, 1)};
      int64_t row = 0;
      for (int64_t blocks = num_blocks; blocks > 0; --blocks) {
        const int64_t count = ceil_divide(p.num_rows - row, blocks);
        tiles.shape(count);
        const float* x = p.x + row * stride;
        tiles.multiply(reinterpret_cast<const char*>(x + pairs_at) + 2 * first, 4 * stride,
                       pairs + (first - span) / 2 * kPanel, end - first, [&] { ahead.step(); },
                       sums);
        add_scaled(sums, count, of, has_minimum, of_x.from_row(row), results + row * kPanel);
        row += count;
      }
      first = end;
    }
  }
}

}  // namespace vllm_lite::VLLM_LITE_ISA

#endif
