// GEMMs of float32 rows and grouped weights, and look-ups of their rows.
//
// A segment's products are added up apart for even and odd inputs, in order; then
// sum += scale * products - minimum * sum of x, segment by segment. So a row's result depends neither
// on other rows nor on how the work is divided. Few rows are multiplied by numbers as they are made;
// for more, those of kSegment inputs are made once.
#include "cpu/kernels/amx/grouped_products.h"
#include "cpu/kernels/grouped_made.h"
#include "cpu/kernels/kernels.h"
#include "cpu/kernels/row_codes.h"
#include "cpu/kernels/store_rows.h"
#include "cpu/kernels/whole_rows.h"

#if VLLM_LITE_HAS_GROUPED_PAIRS
namespace vllm_lite::avx512 {
void grouped_product(const GroupedProduct&, int64_t begin_panel, int64_t end_panel);
}
#endif

namespace vllm_lite::VLLM_LITE_ISA {
namespace {

// Rows whose sums, two for each vector, fit the registers: beside numbers that are made, and beside
// those that are loaded. Of more, up to kManyRows, the sums of even inputs are made first, then those
// of odd ones.
#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int kFewRows = 4, kRowsAtOnce = 6, kManyRows = 6;
#elif defined(__AVX2__)
constexpr int kFewRows = 2, kRowsAtOnce = 3, kManyRows = 6;
#else
constexpr int kFewRows = 1, kRowsAtOnce = 2, kManyRows = 2;
#endif
constexpr int kTileVectors = 2;
constexpr int kHalfUnit = kUnit / 2;
// Of a tile of few rows; that of one row has all of the panel's, as two would read every other line
// each.
template <int kRows>
constexpr int kFewVectors = kRows == 1 && kLanes == 8 ? kPanelVectors : kTileVectors;
// How many of all a panel's are made at once: look-ups of bytes take more registers.
template <class Codes>
constexpr int kVectorsAtOnce = kTileVectors;
#if VLLM_LITE_MAKES_NUMBERS
template <int kBits, int kBytes>
constexpr int kVectorsAtOnce<BytesOfCodes<kBits, kBytes>> = 1;
#endif

// The usual order of sums: even inputs of a segment, odd ones, both together.
struct BySegments {
  using X = float;
  using Sum = Vec;
  static constexpr int kInputs = 1;  // that are multiplied at once
  static constexpr int kTileRows = kManyRows;
  static constexpr int kDistance = 1;
  static constexpr bool kHasSteps = false;

  static const X* rows(const GroupedProduct& p) { return p.x; }
  static Sum start(SegmentOfX) { return Sum{}; }
  static Vec add(Vec sum, Vec numbers, X x) { return multiply_add(numbers, broadcast(x), sum); }
};

#if VLLM_LITE_HAS_GROUPED_PAIRS && !VLLM_LITE_HAS_TILES
// So for pairs of inputs.
struct ByPairs : BySegments {
  using X = uint32_t;
  static constexpr int kInputs = 2;
  static constexpr int kTileRows = 4;

  static const X* rows(const GroupedProduct& p) {
    return reinterpret_cast<const uint32_t*>(p.x + pairs_of_row(*p.weight));
  }
  static Vec add(Vec sum, BitsVec numbers, X x) {
    return _mm512_dpbf16_ps(sum, bit_cast<__m512bh>(numbers),
                            bit_cast<__m512bh>(_mm512_set1_epi32(static_cast<int>(x))));
  }
};

// So for four inputs at once, whose sums are integers.
struct ByQuads : BySegments {
  using X = uint32_t;
  using Sum = IntVec;
  static constexpr int kInputs = 4;
  static constexpr int kTileRows = 4;

  static const X* rows(const GroupedProduct& p) {
    return reinterpret_cast<const uint32_t*>(p.x + pairs_of_row(*p.weight));
  }
  static Sum start(SegmentOfX x) { return IntVec{} + *x.excess(); }
  static IntVec add(IntVec sum, BitsVec numbers, X x) {
    return bit_cast<IntVec>(_mm512_dpbusd_epi32(bit_cast<__m512i>(sum), bit_cast<__m512i>(numbers),
                                                _mm512_set1_epi32(static_cast<int>(x))));
  }
};
#endif

#if VLLM_LITE_HAS_GROUPED_TILES
// The tile unit's: so for each step, then step after step.
template <class Codes>
struct BySteps : BySegments {
  static constexpr int kDistance = kPairDistance<Codes>;
  static constexpr bool kHasSteps = true;
};
#endif

static inline Vec as_floats(Vec sum) { return sum; }
static inline Vec as_floats(IntVec sum) { return to_floats(sum); }

template <int kRows, int kVectors>
using Totals = Vec[kRows][kVectors];
template <class Order, int kRows, int kVectors>
using Sums = typename Order::Sum[kRows][kVectors];

template <class Order, int kRows, int kVectors>
[[gnu::always_inline]] inline void begin_segment(Sums<Order, kRows, kVectors>& even,
                                                 Sums<Order, kRows, kVectors>& odd, SegmentOfX x) {
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int k = 0; k < kVectors; ++k) {
      even[r][k] = Order::start(x.from_row(r));
      odd[r][k] = typename Order::Sum{};
    }
  }
}

// Adds a segment's sums to the totals of rows.
template <class Order, int kRows, int kVectors>
[[gnu::always_inline]] inline void add_segment(const Sums<Order, kRows, kVectors>& even,
                                               const Sums<Order, kRows, kVectors>& odd,
                                               const GroupScale (&of)[kVectors], bool has_minimum,
                                               SegmentOfX x, Totals<kRows, kVectors>& totals) {
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int k = 0; k < kVectors; ++k) {
      Vec sum = as_floats(even[r][k] + odd[r][k]);
      if (x.has_scale) sum *= broadcast(x.scale[r * x.stride]);
      totals[r][k] = multiply_add(sum, of[k].scale, totals[r][k]);
      if (has_minimum) {
        totals[r][k] = multiply_add(-of[k].minimum, broadcast(x.sum[r * x.stride]), totals[r][k]);
      }
    }
  }
}

// Adds a step's sums to those of the steps before it.
template <class Order, int kRows, int kVectors>
[[gnu::always_inline]] inline void add_step(Sums<Order, kRows, kVectors>& even,
                                            Sums<Order, kRows, kVectors>& odd,
                                            Sums<Order, kRows, kVectors>& steps) {
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int k = 0; k < kVectors; ++k) {
      steps[r][k] += even[r][k] + odd[r][k];
      even[r][k] = odd[r][k] = typename Order::Sum{};
    }
  }
}

// kRows rows by the vectors of a panel from `v` on.
template <class Order, class Codes, int kRows>
void multiply_few(const GroupedProduct& p, const Codes& codes, int64_t panel, int v,
                  float* results) {
  const GroupedWeight& w = *p.weight;
  const int64_t stride = wide_row_floats(w), unit_bytes = kUnit * kPanel * w.bits / 8;
  const typename Order::X* x = Order::rows(p);
  SegmentOfX of_x(p);
  const uint8_t* unit = w.codes + panel * grouped_panel_bytes(w);
  const int64_t groups_before = panel * num_groups(w);
  const bool has_minimum = has_minimums(w);
  constexpr int kCount = kHalfUnit / Order::kInputs, kVectors = kFewVectors<kRows>;
  Totals<kRows, kVectors> totals = {};
  Sums<Order, kRows, kVectors> even, odd, steps = {};
  begin_segment<Order>(even, odd, of_x);
  const int64_t step = step_of(w);
  for (int64_t first = 0, end = segment_end(w, 0); first < w.num_inputs; unit += unit_bytes) {
    for (int64_t line = 0; v == 0 && line < unit_bytes; line += kLine) {
      __builtin_prefetch(unit + kFarAhead + line, 0, 2);
      __builtin_prefetch(unit + kNearAhead + line);
    }
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      if (half == 1 && first >= w.num_inputs) break;
      // A vector or two at a time, whose numbers and sums fit the registers.
      constexpr int kAtOnce = kVectors > kTileVectors ? kVectorsAtOnce<Codes> : kTileVectors;
#pragma GCC unroll 4
      for (int k = 0; k < kVectors; k += kAtOnce) {
        const auto first_reader = codes.reader(unit, v + k);
        const auto second_reader = codes.reader(unit, v + k + kAtOnce - 1);
        // The next ones load x again: kept, it would go through memory.
        if constexpr (kVectors > kTileVectors) asm("" : "+r"(x));
#pragma GCC unroll 16
        for (int i = 0; i < kCount; ++i) {
          const auto first_numbers = first_reader[half * kCount + i];
          const auto second_numbers = second_reader[half * kCount + i];
#pragma GCC unroll 8
          for (int r = 0; r < kRows; ++r) {
            const auto value = x[r * stride + i];
            auto* const sums = i / Order::kDistance % 2 == 0 ? even[r] : odd[r];
            sums[k] = Order::add(sums[k], first_numbers, value);
            if constexpr (kAtOnce > 1) sums[k + 1] = Order::add(sums[k + 1], second_numbers, value);
          }
        }
      }
      x += kCount;
      first += kHalfUnit;
      if constexpr (Order::kHasSteps) {
        if (half == 1 || step == kHalfUnit || first == end) add_step<Order>(even, odd, steps);
      }
      if (first == end) {
        if constexpr (Order::kHasSteps) memcpy(even, steps, sizeof even);
        const int64_t group = (first - 1) / w.group_size;
        GroupScale of[kVectors];
#pragma GCC unroll 4
        for (int k = 0; k < kVectors; ++k) {
          of[k] = group_scale<Codes>(w, panel, groups_before + group, v + k);
        }
        add_segment<Order>(even, odd, of, has_minimum, of_x, totals);
        ++of_x;
        begin_segment<Order>(even, odd, of_x);
        if constexpr (Order::kHasSteps) memset(steps, 0, sizeof steps);
        end = segment_end(w, first, group + (first == (group + 1) * w.group_size));
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
    memcpy(results + r * kPanel + v * kLanes, totals[r], sizeof totals[r]);
  }
}

template <class Order, class Codes, int kRows = kFewRows>
void multiply_few_rows(const GroupedProduct& p, const Codes& codes, int64_t panel, int num_vectors,
                       float* results) {
  if constexpr (kRows > 1) {
    if (p.num_rows < kRows) {
      return multiply_few_rows<Order, Codes, kRows - 1>(p, codes, panel, num_vectors, results);
    }
  }
  for (int v = 0; v < num_vectors; v += kFewVectors<kRows>) {
    multiply_few<Order, Codes, kRows>(p, codes, panel, v, results);
  }
}

// Segments of a panel that lie within kSegment inputs, as numbers: of each input, or of those that
// are multiplied at once, the panel's outputs.
template <class Order>
struct Span {
  alignas(64) typename Order::X numbers[kSegment / Order::kInputs * kPanel];
  int num_segments;
  int64_t counts[kSegment / kHalfUnit];  // even
  GroupScale scales[kSegment / kHalfUnit][kPanelVectors];
};

static inline Vec load_numbers(const float* from) { return load(from); }
static inline BitsVec load_numbers(const uint32_t* from) {
  return load_words(reinterpret_cast<const uint8_t*>(from));
}

// Adds the products of inputs 0, 2, ... to one set of sums, and those of inputs 1, 3, ... to another.
template <class Order, int kRows, int kSets>
[[gnu::always_inline]] inline void add_products(int64_t count, const typename Order::X* numbers,
                                                const typename Order::X* x, int64_t stride,
                                                Sums<Order, kRows, kTileVectors>* sets) {
  for (int64_t i = 0; i < count; i += 2, numbers += 2 * kPanel, x += 2) {
#pragma GCC unroll 2
    for (int set = 0; set < kSets; ++set) {
      const auto first = load_numbers(numbers + set * kPanel);
      const auto second = load_numbers(numbers + set * kPanel + kLanes);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        const auto value = x[r * stride + set];
        sets[set][r][0] = Order::add(sets[set][r][0], first, value);
        sets[set][r][1] = Order::add(sets[set][r][1], second, value);
      }
    }
  }
}

// kRows rows by the vectors from `v` on; results have a row of kPanel for each.
template <class Order, int kRows>
void multiply_tile(const Span<Order>& span, bool has_minimum, int v, const typename Order::X* x,
                   SegmentOfX of_x, float* results) {
  const typename Order::X* numbers = span.numbers + v * kLanes;
  results += v * kLanes;
  for (int segment = 0; segment < span.num_segments; ++segment, ++of_x) {
    Sums<Order, kRows, kTileVectors> sums[2];
    begin_segment<Order>(sums[0], sums[1], of_x);
    const int64_t count = span.counts[segment];
    constexpr int kSets = kRows <= kRowsAtOnce ? 2 : 1;
#pragma GCC unroll 2
    for (int set = 0; set < 2; set += kSets) {
      add_products<Order, kRows, kSets>(count, numbers + set * kPanel, x + set, of_x.stride,
                                        sums + set);
    }
    numbers += count * kPanel;
    x += count;
    // Between segments totals are in memory: registers are for sums.
    Totals<kRows, kTileVectors> totals;
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
      for (int k = 0; k < kTileVectors; ++k) totals[r][k] = load(results + r * kPanel + k * kLanes);
    }
    const GroupScale of[kTileVectors] = {span.scales[segment][v], span.scales[segment][v + 1]};
    add_segment<Order>(sums[0], sums[1], of, has_minimum, of_x, totals);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
      for (int k = 0; k < kTileVectors; ++k) store(results + r * kPanel + k * kLanes, totals[r][k]);
    }
  }
}

template <class Order, int kRows = Order::kTileRows>
void multiply_rows(int64_t count, const Span<Order>& span, bool has_minimum, int v,
                   const typename Order::X* x, SegmentOfX of_x, float* results) {
  if constexpr (kRows == 1) {
    multiply_tile<Order, 1>(span, has_minimum, v, x, of_x, results);
  } else if (count >= kRows) {
    multiply_tile<Order, kRows>(span, has_minimum, v, x, of_x, results);
  } else {
    multiply_rows<Order, kRows - 1>(count, span, has_minimum, v, x, of_x, results);
  }
}

template <class Order, class Codes>
void multiply_many_rows(const GroupedProduct& p, const Codes& codes, int64_t panel,
                        int num_vectors, float* results) {
  constexpr int kInputs = Order::kInputs;
  const GroupedWeight& w = *p.weight;
  const int64_t stride = wide_row_floats(w), unit_bytes = kUnit * kPanel * w.bits / 8;
  const uint8_t* unit = w.codes + panel * grouped_panel_bytes(w);
  const int64_t groups_before = panel * num_groups(w);
  const bool has_minimum = has_minimums(w);
  // Segments of 16 inputs are too short to be walked twice.
  const bool are_short = w.group_size <= kHalfUnit;
  const int tallest = are_short ? min_of(Order::kTileRows, kRowsAtOnce) : Order::kTileRows;
  SegmentOfX of_x(p);
  Span<Order> span;
  for (int64_t begin = 0; begin < w.num_inputs; begin += kSegment) {
    const int64_t end = min_of(begin + kSegment, w.num_inputs);
    for (int64_t i = begin; i < end; i += kUnit, unit += unit_bytes) {
      for (int64_t line = 0; line < unit_bytes; line += kLine) {
        __builtin_prefetch(unit + kFarAhead + line);
      }
      make_numbers<kUnit / kInputs>(codes, unit, 0, num_vectors,
                                    span.numbers + (i - begin) / kInputs * kPanel);
    }
    span.num_segments = 0;
    for (int64_t first = begin; first < end; ++span.num_segments) {
      const int64_t group = first / w.group_size, segment = segment_end(w, first, group);
      for (int v = 0; v < num_vectors; ++v) {
        span.scales[span.num_segments][v] = group_scale<Codes>(w, panel, groups_before + group, v);
      }
      span.counts[span.num_segments] = (segment - first) / kInputs;
      first = segment;
    }
    const typename Order::X* x = Order::rows(p) + begin / kInputs;
    for (int v = 0; v < num_vectors; v += kTileVectors) {
      for (int64_t row = 0, tiles = ceil_divide(p.num_rows, tallest); tiles > 0; --tiles) {
        const int64_t height = ceil_divide(p.num_rows - row, tiles);
        multiply_rows<Order>(height, span, has_minimum, v, x + row * stride, of_x.from_row(row),
                             results + row * kPanel);
        row += height;
      }
    }
    of_x = of_x.after(span.num_segments);
  }
}

template <class Order, class Codes>
void multiply_panels(const GroupedProduct& p, const Codes& codes, int64_t begin, int64_t end,
                     float* results) {
  for (int64_t panel = begin; panel < end; ++panel) {
    const int64_t output = panel * kPanel;
    const int64_t num_outputs = min_of<int64_t>(kPanel, p.weight->num_outputs - output);
    const int num_vectors =
        static_cast<int>(round_up(ceil_divide(num_outputs, kLanes), kTileVectors));
    if (p.num_rows <= kFewRows) {
      multiply_few_rows<Order>(p, codes, panel, num_vectors, results);
    } else {
      memset(results, 0, p.num_rows * kPanel * sizeof(float));
      multiply_many_rows<Order>(p, codes, panel, num_vectors, results);
    }
    store_rows(p, 0, output, p.num_rows, num_outputs, results);
  }
}

template <class Out, class Codes>
void look_up_row(const GroupedLookup& p, const Codes& codes, int64_t i) {
  const GroupedWeight& w = *p.weight;
  const int64_t row = p.ids[i] - max_of<int64_t>(p.first_row, 0);
  Out* out = static_cast<Out*>(p.out) + i * p.out_stride;
  if (row < 0 || row >= w.num_outputs) {
    memset(out, 0, w.num_inputs * sizeof(Out));
    return;
  }
  const int64_t panel = row / kPanel, groups_before = panel * num_groups(w);
  const int lane = static_cast<int>(row % kPanel), v = lane / kLanes, at = lane % kLanes;
  const uint8_t* unit = w.codes + panel * grouped_panel_bytes(w);
  alignas(64) float numbers[kUnit * kPanel];
  float scale = 0.0f, zero = 0.0f, minimum = 0.0f;
  for (int64_t input = 0; input < w.num_inputs; ++input) {
    if (input % kUnit == 0) {
      make_numbers<kUnit>(codes, unit, v, v + 1, numbers);
      unit += kUnit * kPanel * w.bits / 8;
    }
    if (input % w.group_size == 0) {
      const int64_t group = groups_before + input / w.group_size, place = group * kPanel;
      scale = group_scale<Codes>(w, panel, group, v).scale[at];
      zero = load_zeros(w, place + v * kLanes)[at];
      minimum = w.minimums == nullptr ? 0.0f : w.minimums[place + lane];
    }
    const float number = numbers[input % kUnit * kPanel + lane];
    const int64_t to = w.permutation == nullptr ? input : w.permutation[input];
    from_float(out + to, (number - zero) * scale - minimum);
  }
}

// Copies a row in the order of the weight's columns.
template <class T>
void copy_row(const GroupedWeight& w, const T* x, float* to) {
  if (w.permutation != nullptr) {
    for (int64_t i = 0; i < w.num_inputs; ++i) to[i] = to_float(x[w.permutation[i]]);
  } else {
    for_each_vector(w.num_inputs, [&](int64_t i, int64_t count) {
      store_upto(to + i, load_upto(x + i, count), count);
    });
  }
}

// `in_order` is room for a row that is rounded before it is permuted.
template <class T>
void widen_row(const WidenRows& p, int64_t row, float* in_order) {
  const GroupedWeight& w = *p.weight;
  const T* x = static_cast<const T*>(p.x) + row * p.x_stride;
  float* to = p.rows + row * wide_row_floats(w);
#if VLLM_LITE_HAS_WHOLE_ROWS
  if (is_whole(p.rounding, w)) return make_whole_row(p, x, row);
#endif
  const int64_t padded = padded_inputs(w), room = room_of_segments(w);
  float* scales = to + padded + room;
  for (int64_t i = 0; i < room; ++i) scales[i] = 1.0f;
  if (p.rounding.group_size > 0) {
    float* codes = w.permutation == nullptr ? to : in_order;
    code_row(p.rounding, w, x, codes, scales);
    if (codes != to) copy_row(w, codes, to);
  } else {
    copy_row(w, x, to);
  }
  for (int64_t i = w.num_inputs; i < padded; ++i) to[i] = 0.0f;
  float* sum = to + padded;
  for (int64_t first = 0; has_minimums(w) && first < w.num_inputs; ++sum, ++scales) {
    const int64_t end = segment_end(w, first);
    Vec total = {};
    for (; first < end; first += kLanes) total += load(to + first);
    *sum = reduce_add(total) * *scales;
  }
#if VLLM_LITE_HAS_GROUPED_PAIRS
  if (has_codes(p.rounding, w) && are_quads(p.rounding, w)) {
    quad_row(w, to);
  } else if (p.dtype == DType::kBFloat16 || has_codes(p.rounding, w)) {
    pair_row(w, to);
  }
#endif
}

}  // namespace

#if VLLM_LITE_HAS_GROUPED_TILES
static void multiply_by_pairs(GroupedProduct p, int64_t begin, int64_t end, float* results) {
  const WithoutSubnormals mode;
  const BriefWeight brief(*p.weight);
  p.weight = &brief.weight;
  GroupedTiles tiles(p.num_rows, step_of(*p.weight));
  with_codes(*p.weight, [&](const auto& codes) {
    using Codes = std::remove_cvref_t<decltype(codes)>;
    for (int64_t panel = begin; panel < end; ++panel) {
      const int64_t output = panel * kPanel;
      // Floats of books are not rounded to their pairs.
      if (p.num_rows <= kFewTileRows && !has_books(*p.weight)) {
        multiply_few_rows<BySteps<Codes>, Codes, kFewTileRows>(p, codes, panel, 2, results);
      } else {
        memset(results, 0, p.num_rows * kPanel * sizeof(float));
        multiply_on_tiles(p, PairCodes<Codes>(codes), panel, tiles, results);
      }
      const int64_t num_outputs = min_of<int64_t>(kPanel, p.weight->num_outputs - output);
      store_rows(p, 0, output, p.num_rows, num_outputs, results);
    }
  });
}
#elif VLLM_LITE_HAS_GROUPED_PAIRS
static void multiply_by_pairs(GroupedProduct p, int64_t begin, int64_t end, float* results) {
  if (are_quads(p.rounding, *p.weight)) {
    return multiply_panels<ByQuads>(p, QuadCodes{}, begin, end, results);
  }
  const BriefWeight brief(*p.weight);
  p.weight = &brief.weight;
  with_codes(*p.weight, [&](const auto& codes) {
    const PairCodes<std::remove_cvref_t<decltype(codes)>> pairs(codes);
    multiply_panels<ByPairs>(p, pairs, begin, end, results);
  });
}
#endif

void widen_rows(const WidenRows& p, int64_t begin_row, int64_t end_row) {
  const bool is_ordered = p.rounding.group_size == 0 || p.weight->permutation == nullptr;
  const int64_t room = is_ordered ? 0 : p.rounding.row_size * int64_t{sizeof(float)};
  float* in_order = static_cast<float*>(__builtin_alloca(room));
  with_type(p.dtype, [&](auto number) {
    for (int64_t row = begin_row; row < end_row; ++row) {
      widen_row<decltype(number)>(p, row, in_order);
    }
  });
}

void grouped_product(const GroupedProduct& p, int64_t begin_panel, int64_t end_panel) {
  alignas(64) float results[kGroupedRows * kPanel];
#if VLLM_LITE_HAS_GROUPED_PAIRS
  if (p.are_brief && !has_half_books(*p.weight)) {
#if VLLM_LITE_HAS_WHOLE_ROWS
    if (is_whole(p.rounding, *p.weight)) {
      for (int64_t panel = begin_panel; panel < end_panel; ++panel) multiply_whole(p, panel);
      return;
    }
#endif
    multiply_by_pairs(p, begin_panel, end_panel, results);
  } else {
    avx512::grouped_product(p, begin_panel, end_panel);  // the same, compiled once
  }
#else
  const auto multiply = [&](const auto& codes) {
    multiply_panels<BySegments>(p, codes, begin_panel, end_panel, results);
  };
#if VLLM_LITE_MAKES_NUMBERS
  if (with_made_codes(*p.weight, multiply)) return;
#endif
  with_codes(*p.weight, multiply);
#endif
}

void grouped_lookup(const GroupedLookup& p, int64_t begin, int64_t end) {
  with_codes(*p.weight, [&](const auto& codes) {
    with_type(p.out_dtype, [&](auto number) {
      for (int64_t i = begin; i < end; ++i) {
        look_up_row<decltype(number)>(p, codes, i);
      }
    });
  });
}

}  // namespace vllm_lite::VLLM_LITE_ISA
