// GEMMs of float32 rows and grouped weights, and look-ups of their rows.
//
// A segment's products are added up apart for even and odd inputs, in order; then
// sum += scale * products - minimum * sum of x, segment by segment. So a row's result depends neither
// on other rows nor on how the work is divided. Few rows are multiplied by numbers as they are made;
// for more, those of kSegment inputs are made once.
#include "cpu/kernels/amx/grouped_products.h"
#include "cpu/kernels/kernels.h"
#include "cpu/kernels/store_rows.h"

namespace vllm_lite::VLLM_LITE_ISA {
namespace {

// Rows whose sums, two for each vector, fit the registers: beside numbers that are made, and beside
// those that are loaded.
#if defined(__AVX512F__)
constexpr int kFewRows = 4, kTileRows = 6;
#elif defined(__AVX2__)
constexpr int kFewRows = 2, kTileRows = 3;
#else
constexpr int kFewRows = 1, kTileRows = 2;
#endif
constexpr int kTileVectors = 2;
constexpr int kHalfUnit = kUnit / 2;
// Prefetch distances in bytes: into the second cache, and from there into the first.
constexpr int64_t kFarAhead = 8192, kNearAhead = 1024;

template <int kRows>
using Sums = Vec[kRows][kTileVectors];

// Adds a segment's sums to the totals of rows whose sums of x are x_stride apart.
template <int kRows>
__attribute__((always_inline)) inline void add_segment(Sums<kRows>& even, Sums<kRows>& odd,
                                                       const GroupScale (&of)[kTileVectors],
                                                       float factor, bool has_minimum,
                                                       const float* x_sum, int64_t x_stride,
                                                       Sums<kRows>& totals) {
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
    for (int k = 0; k < kTileVectors; ++k) {
      const Vec sum = (even[r][k] + odd[r][k]) * factor;
      totals[r][k] = multiply_add(sum, of[k].scale, totals[r][k]);
      if (has_minimum) {
        totals[r][k] = multiply_add(-of[k].minimum, broadcast(x_sum[r * x_stride]), totals[r][k]);
      }
      even[r][k] = odd[r][k] = Vec{};
    }
  }
}

// Adds a step's sums to those of the steps before it.
template <int kRows>
__attribute__((always_inline)) inline void add_step(Sums<kRows>& even, Sums<kRows>& odd,
                                                    Sums<kRows>& steps) {
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
    for (int k = 0; k < kTileVectors; ++k) {
      steps[r][k] += even[r][k] + odd[r][k];
      even[r][k] = odd[r][k] = Vec{};
    }
  }
}

// The usual order of sums: even inputs of a segment, odd ones, both together.
struct BySegments {
  static constexpr int kDistance = 1;
  static constexpr bool kHasSteps = false;
};

#if VLLM_LITE_HAS_GROUPED_TILES
// The tile unit's: so for each step, then step after step.
template <class Codes>
struct BySteps {
  static constexpr int kDistance = kPairDistance<Codes>;
  static constexpr bool kHasSteps = true;
};
#endif

// kRows rows by the vectors of a panel from `v` on.
template <class Order, class Codes, int kRows>
void multiply_few(const GroupedProduct& p, const Codes& codes, int64_t panel, int v,
                  float* results) {
  const GroupedWeight& w = *p.weight;
  const int64_t stride = wide_row_floats(w), unit_bytes = kUnit * kPanel * w.bits / 8;
  const float* x = p.x;
  const float* x_sums = p.x + padded_inputs(w);
  const uint8_t* unit = w.codes + panel * grouped_panel_bytes(w);
  const bool has_minimum = has_minimums(w);
  Sums<kRows> totals = {}, even = {}, odd = {}, steps = {};
  const int64_t step = step_of(w);
  for (int64_t first = 0, end = segment_end(w, 0); first < w.num_inputs; unit += unit_bytes) {
    for (int64_t line = 0; v == 0 && line < unit_bytes; line += kLine) {
      __builtin_prefetch(unit + kFarAhead + line, 0, 2);
      __builtin_prefetch(unit + kNearAhead + line);
    }
    const typename Codes::Reader readers[kTileVectors] = {codes.reader(unit, v),
                                                          codes.reader(unit, v + 1)};
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      if (half == 1 && first >= w.num_inputs) break;
#pragma GCC unroll 16
      for (int i = 0; i < kHalfUnit; ++i) {
        const Vec numbers[kTileVectors] = {readers[0][half * kHalfUnit + i],
                                           readers[1][half * kHalfUnit + i]};
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) {
          const Vec value = broadcast(x[r * stride + i]);
#pragma GCC unroll 2
          for (int k = 0; k < kTileVectors; ++k) {
            Vec& sum = i / Order::kDistance % 2 == 0 ? even[r][k] : odd[r][k];
            sum = multiply_add(numbers[k], value, sum);
          }
        }
      }
      x += kHalfUnit;
      first += kHalfUnit;
      if constexpr (Order::kHasSteps) {
        if (half == 1 || step == kHalfUnit || first == end) add_step<kRows>(even, odd, steps);
      }
      if (first == end) {
        if constexpr (Order::kHasSteps) memcpy(even, steps, sizeof even);
        const int64_t group = (first - 1) / w.group_size;
        const GroupScale of[kTileVectors] = {group_scale(w, panel, group, v),
                                             group_scale(w, panel, group, v + 1)};
        add_segment<kRows>(even, odd, of, Codes::kFactor, has_minimum, x_sums++, stride, totals);
        if constexpr (Order::kHasSteps) memset(steps, 0, sizeof steps);
        end = segment_end(w, first);
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) memcpy(results + r * kPanel + v * kLanes, totals[r], sizeof totals[r]);
}

template <class Order, class Codes, int kRows = kFewRows>
void multiply_few_rows(const GroupedProduct& p, const Codes& codes, int64_t panel, int num_vectors,
                       float* results) {
  if constexpr (kRows > 1) {
    if (p.num_rows < kRows) {
      return multiply_few_rows<Order, Codes, kRows - 1>(p, codes, panel, num_vectors, results);
    }
  }
  for (int v = 0; v < num_vectors; v += kTileVectors) {
    multiply_few<Order, Codes, kRows>(p, codes, panel, v, results);
  }
}

// A segment as numbers: of each input those of a panel's outputs.
struct Segment {
  const float* numbers;
  int64_t count;  // of inputs, even
  float factor;
  bool has_minimum;
  GroupScale scales[kPanelVectors];
};

// kRows rows by the vectors from `v` on; totals have a row of kPanel for each.
template <int kRows>
void multiply_tile(const Segment& segment, int v, const float* x, const float* x_sum,
                   int64_t x_stride, float* results) {
  Sums<kRows> even = {}, odd = {}, totals;
  const float* numbers = segment.numbers + v * kLanes;
  for (int64_t i = 0; i < segment.count; i += 2) {
#pragma GCC unroll 2
    for (int next = 0; next < 2; ++next, numbers += kPanel) {
      const Vec first = load(numbers), second = load(numbers + kLanes);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        const Vec value = broadcast(x[r * x_stride + i + next]);
        Vec(&sums)[kTileVectors] = next == 0 ? even[r] : odd[r];
        sums[0] = multiply_add(first, value, sums[0]);
        sums[1] = multiply_add(second, value, sums[1]);
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) memcpy(totals[r], results + r * kPanel + v * kLanes, sizeof totals[r]);
  const GroupScale of[kTileVectors] = {segment.scales[v], segment.scales[v + 1]};
  add_segment<kRows>(even, odd, of, segment.factor, segment.has_minimum, x_sum, x_stride, totals);
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) memcpy(results + r * kPanel + v * kLanes, totals[r], sizeof totals[r]);
}

template <int kRows = kTileRows>
void multiply_rows(int64_t count, const Segment& segment, int v, const float* x,
                   const float* x_sum, int64_t x_stride, float* results) {
  if constexpr (kRows == 1) {
    multiply_tile<1>(segment, v, x, x_sum, x_stride, results);
  } else if (count >= kRows) {
    multiply_tile<kRows>(segment, v, x, x_sum, x_stride, results);
  } else {
    multiply_rows<kRows - 1>(count, segment, v, x, x_sum, x_stride, results);
  }
}

// Numbers of a unit for the vectors [begin, end) of a panel.
template <class Codes>
void make_numbers(const Codes& codes, const uint8_t* unit, int begin, int end, float* numbers) {
  for (int v = begin; v < end; ++v) {
    const typename Codes::Reader reader = codes.reader(unit, v);
#pragma GCC unroll 32
    for (int i = 0; i < kUnit; ++i) store(numbers + i * kPanel + v * kLanes, reader[i]);
  }
}

template <class Codes>
void multiply_many_rows(const GroupedProduct& p, const Codes& codes, int64_t panel,
                        int num_vectors, float* results) {
  const GroupedWeight& w = *p.weight;
  const int64_t stride = wide_row_floats(w), unit_bytes = kUnit * kPanel * w.bits / 8;
  alignas(64) float numbers[kSegment * kPanel];
  const uint8_t* unit = w.codes + panel * grouped_panel_bytes(w);
  const float* x_sum = p.x + padded_inputs(w);
  for (int64_t span = 0; span < w.num_inputs; span += kSegment) {
    const int64_t span_end = min_of(span + kSegment, w.num_inputs);
    for (int64_t i = span; i < span_end; i += kUnit, unit += unit_bytes) {
      make_numbers(codes, unit, 0, num_vectors, numbers + (i - span) * kPanel);
    }
    for (int64_t first = span; first < span_end; ++x_sum) {
      const int64_t end = segment_end(w, first);
      Segment segment = {numbers + (first - span) * kPanel, end - first, Codes::kFactor,
                         has_minimums(w), {}};
      for (int v = 0; v < num_vectors; ++v) {
        segment.scales[v] = group_scale(w, panel, first / w.group_size, v);
      }
      int64_t row = 0;
      for (int64_t tiles = ceil_divide(p.num_rows, kTileRows); tiles > 0; --tiles) {
        const int64_t height = ceil_divide(p.num_rows - row, tiles);
        for (int v = 0; v < num_vectors; v += kTileVectors) {
          multiply_rows(height, segment, v, p.x + row * stride + first, x_sum + row * stride, stride,
                        results + row * kPanel);
        }
        row += height;
      }
      first = end;
    }
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
  const int64_t panel = row / kPanel, num_groups = ceil_divide(w.num_inputs, w.group_size);
  const int lane = static_cast<int>(row % kPanel), v = lane / kLanes, at = lane % kLanes;
  const uint8_t* unit = w.codes + panel * grouped_panel_bytes(w);
  alignas(64) float numbers[kUnit * kPanel];
  float scale = 0.0f, zero = 0.0f, minimum = 0.0f;
  for (int64_t input = 0; input < w.num_inputs; ++input) {
    if (input % kUnit == 0) {
      make_numbers(codes, unit, v, v + 1, numbers);
      unit += kUnit * kPanel * w.bits / 8;
    }
    if (input % w.group_size == 0) {
      const int64_t group = input / w.group_size;
      const int64_t place = (panel * num_groups + group) * kPanel;
      scale = group_scale(w, panel, group, v).scale[at];
      zero = load_zeros(w, place + v * kLanes)[at];
      minimum = w.minimums == nullptr ? 0.0f : w.minimums[place + lane];
    }
    const float number = numbers[input % kUnit * kPanel + lane] * Codes::kFactor;
    const int64_t to = w.permutation == nullptr ? input : w.permutation[input];
    from_float(out + to, (number - zero) * scale - minimum);
  }
}

template <class T>
void widen_row(const WidenRows& p, int64_t row) {
  const GroupedWeight& w = *p.weight;
  const T* x = static_cast<const T*>(p.x) + row * p.x_stride;
  float* to = p.rows + row * wide_row_floats(w);
  const int64_t padded = padded_inputs(w);
  if (w.permutation != nullptr) {
    for (int64_t i = 0; i < w.num_inputs; ++i) to[i] = to_float(x[w.permutation[i]]);
  } else {
    for_each_vector(w.num_inputs, [&](int64_t i, int64_t count) {
      store_upto(to + i, load_upto(x + i, count), count);
    });
  }
  for (int64_t i = w.num_inputs; i < padded; ++i) to[i] = 0.0f;
  float* sum = to + padded;
  for (int64_t first = 0; has_minimums(w) && first < w.num_inputs; ++sum) {
    const int64_t end = segment_end(w, first);
    Vec total = {};
    for (; first < end; first += kLanes) total += load(to + first);
    *sum = reduce_add(total);
  }
#if VLLM_LITE_HAS_GROUPED_TILES
  if (p.dtype == DType::kBFloat16) pair_row(w, to);
#endif
}

}  // namespace

#if VLLM_LITE_HAS_GROUPED_TILES
static void multiply_panels_on_tiles(GroupedProduct p, int64_t begin, int64_t end,
                                     float* results) {
  const WithoutSubnormals mode;
  const BriefWeight brief(*p.weight);
  p.weight = &brief.weight;
  GroupedTiles tiles(p.num_rows, step_of(*p.weight));
  with_codes(*p.weight, [&](const auto& codes) {
    using Codes = std::remove_cvref_t<decltype(codes)>;
    for (int64_t panel = begin; panel < end; ++panel) {
      const int64_t output = panel * kPanel;
      if (p.num_rows <= kFewTileRows) {
        multiply_few_rows<BySteps<Codes>, Codes, kFewTileRows>(p, codes, panel, 2, results);
      } else {
        memset(results, 0, p.num_rows * kPanel * sizeof(float));
        multiply_on_tiles(p, codes, panel, tiles, results);
      }
      const int64_t num_outputs = min_of<int64_t>(kPanel, p.weight->num_outputs - output);
      store_rows(p, 0, output, p.num_rows, num_outputs, results);
    }
  });
}
#endif

void widen_rows(const WidenRows& p, int64_t begin_row, int64_t end_row) {
  with_type(p.dtype, [&](auto number) {
    for (int64_t row = begin_row; row < end_row; ++row) widen_row<decltype(number)>(p, row);
  });
}

void grouped_product(const GroupedProduct& p, int64_t begin_panel, int64_t end_panel) {
  alignas(64) float results[kGroupedRows * kPanel];
#if VLLM_LITE_HAS_GROUPED_TILES
  // Books' numbers are made as they are needed, and not rounded.
  if (p.dtype == DType::kBFloat16 && !has_books(*p.weight)) {
    multiply_panels_on_tiles(p, begin_panel, end_panel, results);
    return;
  }
#endif
  with_codes(*p.weight, [&](const auto& codes) {
    for (int64_t panel = begin_panel; panel < end_panel; ++panel) {
      const int64_t output = panel * kPanel;
      const int64_t num_outputs = min_of<int64_t>(kPanel, p.weight->num_outputs - output);
      const int num_vectors =
          static_cast<int>(round_up(ceil_divide(num_outputs, kLanes), kTileVectors));
      if (p.num_rows <= kFewRows) {
        multiply_few_rows<BySegments>(p, codes, panel, num_vectors, results);
      } else {
        memset(results, 0, p.num_rows * kPanel * sizeof(float));
        multiply_many_rows(p, codes, panel, num_vectors, results);
      }
      store_rows(p, 0, output, p.num_rows, num_outputs, results);
    }
  });
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
