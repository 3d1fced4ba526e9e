// Few quantised rows times packed quantised weights, in registers: planes of codes are
// loaded, unpacked and multiplied at once. Results equal those for many rows bit for bit: integers are
// exact, and floats are added in quantized_linear.cpp's order.
#pragma once

#include "cpu/kernels/quantized_dots.h"

namespace vllm_lite::VLLM_LITE_ISA {

// For more rows, unpacking a chunk once is as fast or faster: few registers are left for sums.
#if defined(__AVX512VNNI__)
constexpr int64_t kFewRows = 8;
#elif defined(__AVX2__) || defined(__ARM_FEATURE_MATMUL_INT8)
constexpr int64_t kFewRows = 4;
#else
constexpr int64_t kFewRows = 1;
#endif
constexpr int kRowVectors = 2;
// Prefetch distances in bytes: into the second cache, and from there into the first. A core can wait
// for more lines on their way to the second cache than to the first.
constexpr int kFarAhead = 8192, kNearAhead = 1024;

// Adds a group's products to the totals of kRows rows by kRowVectors vectors from `v` on.
template <class Block, int kRows>
static inline void add_group(const uint8_t* header, const uint8_t* group, int g, int v,
                             const QuantizedGroup* x, Vec (&totals)[kRows][kRowVectors]) {
  constexpr int kParts = Packed<Block>::kParts;
  constexpr int kLines = kGroupLines / kParts;
  const Codes<Block> codes[kRowVectors] = {{header, group, g, v}, {header, group, g, v + 1}};
  Vec group_sums[kRows][kRowVectors];
#pragma GCC unroll 2
  for (int part = 0; part < kParts; ++part) {
    IntVec dots[kRows][kRowVectors], negated[kRows];
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      negated[r] = IntVec{} + (kParts == 1 ? x[r].negated_sum : x[r].negated_half_sums[part]);
      dots[r][0] = dots[r][1] = negated[r] * Block::kOffset;
    }
#pragma GCC unroll 8
    for (int i = part * kLines; i < (part + 1) * kLines; ++i) {
      const CodeVec lines[kRowVectors] = {codes[0].line(i), codes[1].line(i)};
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
        for (int k = 0; k < kRowVectors; ++k) {
          dots[r][k] = add_dots<kIsWide<Block>>(dots[r][k], lines[k], x[r].codes + 4 * i);
        }
      }
    }
#pragma GCC unroll 2
    for (int k = 0; k < kRowVectors; ++k) {
      const Scales scales = load_scales<Block>(header, group, v + k, part);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        Vec& to = group_sums[r][k];
        if constexpr (Block::kHasMinimum) {
          const Vec sum = to_floats(negated[r]);
          to = part == 0 ? scales.minimum * sum : multiply_add(scales.minimum, sum, to);
        }
        const Vec dot = to_floats(dots[r][k]);
        const bool is_first = part == 0 && !Block::kHasMinimum;
        to = is_first ? scales.scale * dot : multiply_add(scales.scale, dot, to);
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
    for (int k = 0; k < kRowVectors; ++k) {
      totals[r][k] = multiply_add(group_sums[r][k], broadcast(x[r].scale), totals[r][k]);
    }
  }
}

// kRows rows by a panel; `sums` has a row of kPanel for each. One row waits for memory: all of the
// panel's outputs are added up in one pass, as nothing is read while a second one finds it in a cache.
template <class Block, int kRows>
static void multiply_few(const uint8_t* panel, int64_t num_groups, int num_vectors,
                         const QuantizedGroup* x, float* sums) {
  using Layout = Packed<Block>;
  constexpr int kTiles = kRows == 1 ? kPanelVectors / kRowVectors : 1;
  for (int v = 0; v < num_vectors; v += kTiles * kRowVectors) {
    Vec totals[kTiles][kRows][kRowVectors] = {};
    const QuantizedGroup* groups = x;
    const uint8_t* chunk = panel;
    for (int64_t left = num_groups; left > 0; left -= Layout::kGroups, chunk += Layout::kChunkBytes) {
      const uint8_t* group = chunk + Layout::kHeaderBytes;
      const int count = static_cast<int>(min_of<int64_t>(left, Layout::kGroups));
      for (int g = 0; g < count; ++g) {
        if (v == 0) {
          for (int i = 0; i < Layout::kGroupBytes; i += kLine) {
            __builtin_prefetch(group + kFarAhead + i, 0, 2);
            __builtin_prefetch(group + kNearAhead + i);
          }
        }
#pragma GCC unroll 4
        for (int k = 0; k < kTiles; ++k) {
          add_group<Block, kRows>(chunk, group, g, v + k * kRowVectors, groups, totals[k]);
        }
        group += Layout::kGroupBytes;
        groups += kRows;
      }
    }
    for (int k = 0; k < kTiles; ++k) {
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        float* to = sums + r * kPanel + (v + k * kRowVectors) * kLanes;
        memcpy(to, totals[k][r], sizeof totals[k][r]);
      }
    }
  }
}

// `num_rows` rows, at most kFewRows, by a panel.
template <class Block, int kRows = kFewRows>
static void multiply_few_rows(int64_t num_rows, const uint8_t* panel, int64_t num_groups,
                              int num_vectors, const QuantizedGroup* x, float* sums) {
  if constexpr (kRows > 1) {
    if (num_rows < kRows) {
      multiply_few_rows<Block, kRows - 1>(num_rows, panel, num_groups, num_vectors, x, sums);
      return;
    }
  }
  multiply_few<Block, kRows>(panel, num_groups, num_vectors, x, sums);
}

}  // namespace vllm_lite::VLLM_LITE_ISA
