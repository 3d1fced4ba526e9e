// GEMMs of quantised activations and packed quantised weights, and look-ups of their rows.
//
// A chunk of a panel is unpacked once for all rows of x, except for few rows (quantized_row.h). Codes
// of a part, less their offset, are multiplied and added up as integers, exactly; then
// sum += x's scale * (scale * products - minimum * sum of x's codes), part by part in order. So a
// row's result depends neither on other rows nor on how the work is divided, and one row gives the
// same as many.
#include "cpu/kernels/kernels.h"
#include "cpu/kernels/quantized_rounding.h"
#include "cpu/kernels/quantized_row.h"
#include "cpu/kernels/quantized_unpack.h"
#include "cpu/kernels/store_rows.h"

#if defined(__AVX512BF16__)
namespace vllm_lite::avx512_vnni {
void quantized_product(const QuantizedProduct&, int64_t begin_panel, int64_t end_panel);
}
#endif

namespace vllm_lite::VLLM_LITE_ISA {
namespace {

// A tile's integer and float sums stay in registers, beside a line of codes for each vector.
#if defined(__AVX512VNNI__) || defined(__ARM_FEATURE_MATMUL_INT8)
constexpr int kTileRows = 6;
#elif defined(__AVX512F__) || defined(__aarch64__)
constexpr int kTileRows = 4;  // four products are several instructions, with sums of their own
#else
constexpr int kTileRows = 3;
#endif
constexpr int kTileVectors = 2;

// ---- GEMMs

// The conversion of codes to values, by Packed<Block> and Block.
template <int kPartsOfGroup, int kCodeOffset, bool kSubtractsMinimum, bool kHasWideCodes>
struct Scaling {
  static constexpr int kParts = kPartsOfGroup;
  static constexpr int kOffset = kCodeOffset;
  static constexpr bool kHasMinimum = kSubtractsMinimum;
  static constexpr bool kIsWide = kHasWideCodes;
};

// A tile's integers.
template <int kRows>
using Integers = IntVec[kRows][kTileVectors];

// Adds dot products of a part of a group for the vectors from `v` on.
template <int kParts, bool kIsWide, int kRows>
__attribute__((always_inline)) inline void add_products(const Chunk& chunk, int g, int part, int v,
                                                        const QuantizedGroup* x,
                                                        Integers<kRows>& sums) {
  constexpr int kLines = kGroupLines / kParts;
  const auto add_lines = [&](auto&& add_line) __attribute__((always_inline)) {
#pragma GCC unroll 8
    for (int i = part * kLines; i < (part + 1) * kLines; ++i) {
      const CodeVec* line = chunk.codes[g * kGroupLines + i] + v;
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
        for (int k = 0; k < kTileVectors; ++k) sums[r][k] = add_line(sums[r][k], line[k], r, i);
      }
    }
  };
#if defined(VLLM_LITE_WIDENS_CODES)
  if constexpr (kIsWide) {
    WideCodes wide[kRows];
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) wide[r].take(x[r].codes);
    add_lines([&](IntVec to, CodeVec codes, int r, int i) __attribute__((always_inline)) {
      return add_dots(to, codes, wide[r], i);
    });
    return;
  }
#endif
  add_lines([&](IntVec to, CodeVec codes, int r, int i) __attribute__((always_inline)) {
    return add_dots<kIsWide>(to, codes, x[r].codes + 4 * i);
  });
}

// kRows rows from `x` on by kTileVectors vectors of a chunk's outputs. `sums` has a row of kPanel
// for each row of x; groups of x are x_stride apart.
template <int kRows, class Scaling>
void multiply_tile(const Chunk& chunk, int num_groups, int v, const QuantizedGroup* x,
                   int64_t x_stride, float* sums) {
  Vec totals[kRows][kTileVectors];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
    memcpy(totals[r], sums + r * kPanel + v * kLanes, sizeof totals[r]);
  }
  for (int g = 0; g < num_groups; ++g, x += x_stride) {
    Vec group_sums[kRows][kTileVectors];
#pragma GCC unroll 2
    for (int part = 0; part < Scaling::kParts; ++part) {
      const auto negated_sum = [&](int r) {
        return IntVec{} + (Scaling::kParts == 1 ? x[r].negated_sum : x[r].negated_half_sums[part]);
      };
      Integers<kRows> dots;
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        const IntVec start = negated_sum(r) * Scaling::kOffset;
#pragma GCC unroll 2
        for (int k = 0; k < kTileVectors; ++k) dots[r][k] = start;
      }
      add_products<Scaling::kParts, Scaling::kIsWide, kRows>(chunk, g, part, v, x, dots);
      const Vec* scale = chunk.scales[2 * g + part] + v;
      const Vec* minimum = chunk.minima[2 * g + part] + v;
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        const Vec sum = to_floats(negated_sum(r));
#pragma GCC unroll 2
        for (int k = 0; k < kTileVectors; ++k) {
          Vec& to = group_sums[r][k];
          if constexpr (Scaling::kHasMinimum) {
            to = part == 0 ? minimum[k] * sum : multiply_add(minimum[k], sum, to);
          }
          const Vec dot = to_floats(dots[r][k]);
          const bool is_first = part == 0 && !Scaling::kHasMinimum;
          to = is_first ? scale[k] * dot : multiply_add(scale[k], dot, to);
        }
      }
    }
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
      for (int k = 0; k < kTileVectors; ++k) {
        totals[r][k] = multiply_add(group_sums[r][k], broadcast(x[r].scale), totals[r][k]);
      }
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
    memcpy(sums + r * kPanel + v * kLanes, totals[r], sizeof totals[r]);
  }
}

template <class Scaling, int kRows = kTileRows>
void multiply_rows(int64_t count, const Chunk& chunk, int num_groups, int v,
                   const QuantizedGroup* x, int64_t x_stride, float* sums) {
  if constexpr (kRows == 1) {
    multiply_tile<1, Scaling>(chunk, num_groups, v, x, x_stride, sums);
  } else if (count >= kRows) {
    multiply_tile<kRows, Scaling>(chunk, num_groups, v, x, x_stride, sums);
  } else {
    multiply_rows<Scaling, kRows - 1>(count, chunk, num_groups, v, x, x_stride, sums);
  }
}

// All rows. In tiles of nearly equal height: a last tile of one row would be as slow as a full one.
template <class Scaling>
void multiply_chunk(const Chunk& chunk, int num_groups, int num_vectors, const QuantizedGroup* x,
                    int64_t num_rows, float* sums) {
  int64_t row = 0;
  for (int64_t tiles = ceil_divide(num_rows, kTileRows); tiles > 0; --tiles) {
    const int64_t height = ceil_divide(num_rows - row, tiles);
    for (int v = 0; v < num_vectors; v += kTileVectors) {
      multiply_rows<Scaling>(height, chunk, num_groups, v, x + row, num_rows, sums + row * kPanel);
    }
    row += height;
  }
}

template <class Block>
void multiply_panel(const QuantizedProduct& p, const QuantizedPart& part, int64_t panel) {
  using Layout = Packed<Block>;
  using Scaling = Scaling<Layout::kParts, Block::kOffset, Block::kHasMinimum, kIsWide<Block>>;
  const int64_t num_outputs = min_of<int64_t>(kPanel, part.num_outputs - panel * kPanel);
  const int num_vectors =
      static_cast<int>(round_up(ceil_divide(num_outputs, kLanes), kTileVectors));
  const int64_t num_groups = p.num_inputs / kQuantizedGroup;
  alignas(64) float sums[kQuantizedRows * kPanel];
  memset(sums, 0, p.num_rows * kPanel * sizeof(float));
  const int64_t output = part.first_output + panel * kPanel;
  const uint8_t* from = part.packed + panel * Layout::panel_bytes(p.num_inputs);
  if (p.num_rows <= kFewRows) {
    multiply_few_rows<Block>(p.num_rows, from, num_groups, num_vectors, p.x, sums);
    store_rows(p, 0, output, p.num_rows, num_outputs, sums);
    return;
  }
  Chunk chunk;
  for (int64_t g = 0; g < num_groups; g += Layout::kGroups, from += Layout::kChunkBytes) {
    const int count = static_cast<int>(min_of<int64_t>(Layout::kGroups, num_groups - g));
    unpack_chunk<Block>(from, count, 0, num_vectors, chunk);
    const QuantizedGroup* x = p.x + g * p.num_rows;
    multiply_chunk<Scaling>(chunk, count, num_vectors, x, p.num_rows, sums);
  }
  store_rows(p, 0, output, p.num_rows, num_outputs, sums);
}

// ---- rows

// In double: one rounding, so that a row is exactly what the format says.
template <class Block, class Out>
void look_up_row(const QuantizedLookup& p, int64_t i) {
  using Layout = Packed<Block>;
  const int64_t row = p.ids[i] - max_of<int64_t>(p.first_row, 0);
  Out* out = static_cast<Out*>(p.out) + i * p.out_stride;
  if (row < 0 || row >= p.weight->num_outputs) {
    memset(out, 0, p.num_inputs * sizeof(Out));
    return;
  }
  const int lane = static_cast<int>(row % kPanel);
  const int v = lane / kLanes;
  const int64_t num_groups = p.num_inputs / kQuantizedGroup;
  const uint8_t* from = p.weight->packed + row / kPanel * Layout::panel_bytes(p.num_inputs);
  Chunk chunk;
  for (int64_t g = 0; g < num_groups; g += Layout::kGroups, from += Layout::kChunkBytes) {
    const int count = static_cast<int>(min_of<int64_t>(Layout::kGroups, num_groups - g));
    unpack_chunk<Block>(from, count, v, v + 1, chunk);
    for (int k = 0; k < count * kQuantizedGroup; ++k, ++out) {
      const int at = k / kQuantizedGroup * 2 + k % kQuantizedGroup / Block::kPartSize;
      const int code = chunk.codes[k / 4][v][lane % kLanes * 4 + k % 4] - Block::kOffset;
      const double scale = chunk.scales[at][v][lane % kLanes];
      const double minimum = Block::kHasMinimum ? chunk.minima[at][v][lane % kLanes] : 0.0f;
      from_float(out, static_cast<float>(scale * code - minimum));
    }
  }
}

}  // namespace

void quantize_rows(const QuantizeRows& p, int64_t begin_row, int64_t end_row) {
  with_type(p.dtype, [&](auto number) { quantize_range<decltype(number)>(p, begin_row, end_row); });
}

void quantized_product(const QuantizedProduct& p, int64_t begin_panel, int64_t end_panel) {
#if defined(__AVX512BF16__)
  avx512_vnni::quantized_product(p, begin_panel, end_panel);  // the same, compiled once
#else
  for (int64_t i = 0; i < p.num_parts; ++i) {
    const QuantizedPart& part = p.parts[i];
    const int64_t num_panels = ceil_divide(part.num_outputs, kPanel);
    const int64_t begin = max_of<int64_t>(begin_panel, 0), end = min_of(end_panel, num_panels);
    if (begin < end) {
      with_block(static_cast<int>(part.ggml_type), [&](auto block) {
        using Block = decltype(block);
        for (int64_t k = begin; k < end; ++k) multiply_panel<Block>(p, part, k);
      });
    }
    begin_panel -= num_panels;
    end_panel -= num_panels;
  }
#endif
}

void quantized_lookup(const QuantizedLookup& p, int64_t begin, int64_t end) {
  with_block(static_cast<int>(p.weight->ggml_type), [&](auto block) {
    for (int64_t i = begin; i < end; ++i) {
      with_type(p.out_dtype, [&](auto number) {
        look_up_row<decltype(block), decltype(number)>(p, i);
      });
    }
  });
}

}  // namespace vllm_lite::VLLM_LITE_ISA
