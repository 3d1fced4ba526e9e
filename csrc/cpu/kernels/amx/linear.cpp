// Products of bfloat16 rows and packed weights on tiles; see kernels/linear.cpp for the layout.
//
// A step takes 32 inputs of a panel: pairs of 16 outputs side by side are what a tile holds, so
// the two halves of a panel are two tiles whose rows lie in turn. Steps go in order and the last
// is filled up with zeros. However many rows there are, all are multiplied on tiles, since the
// unit adds up in an order of its own: a row's result depends on nothing else.
#include "cpu/kernels/amx/products.h"
#include "cpu/kernels/store_rows.h"

namespace vllm_lite::VLLM_LITE_ISA {
namespace {

constexpr int64_t kStepInputs = 32;
constexpr int64_t kPairBytes = kPanel * 4;  // of a panel, for one pair of inputs
constexpr int64_t kStepBytes = kStepInputs / 2 * kPairBytes;
constexpr int64_t kBlockRows = 2 * kTileHeight;
static_assert(kPanel * 4 == 2 * kTileRowBytes && kStepInputs * 2 == kTileRowBytes);

// Sums of the upper rows by the panel's halves are tiles 0 and 1, of the lower ones 2 and 3.
constexpr int kX = 4, kWeights = 6;

// The inputs after the last whole step, filled up.
struct Rest {
  alignas(64) char weights[kStepBytes];
  alignas(64) char x[kBlockRows * kTileRowBytes];
};

// Shapes for `count` rows of x.
TileShapes shapes_for(int64_t count) {
  TileShapes shapes;
  for (int half = 0; half < 2; ++half) {
    const int64_t rows = half == 0 ? min_of<int64_t>(count, kTileHeight) : count - kTileHeight;
    shapes.set(kWeights + half, kStepInputs / 2, kTileRowBytes);
    if (rows <= 0) continue;
    shapes.set(kX + half, rows, kTileRowBytes);
    shapes.set(2 * half, rows, kTileRowBytes);
    shapes.set(2 * half + 1, rows, kTileRowBytes);
  }
  return shapes;
}

// One step; rows of x are x_stride bytes apart. kIsTall: there are lower rows.
template <bool kIsTall>
inline void multiply_step(const char* x, int64_t x_stride, const char* weights) {
  load_tile<kWeights>(weights, kPairBytes);
  load_tile<kWeights + 1>(weights + kTileRowBytes, kPairBytes);
  load_tile<kX>(x, x_stride);
  add_bfloat16_products<0, kX, kWeights>();
  add_bfloat16_products<1, kX, kWeights + 1>();
  if constexpr (kIsTall) {
    load_tile<kX + 1>(x + kTileHeight * x_stride, x_stride);
    add_bfloat16_products<2, kX + 1, kWeights>();
    add_bfloat16_products<3, kX + 1, kWeights + 1>();
  }
}

// Sums [kBlockRows, kPanel] of the rows from x on, over all inputs.
template <bool kIsTall>
void multiply_block(const char* x, int64_t x_stride, const char* weights, int64_t num_steps,
                    const Rest* rest, bool is_first, float* sums) {
  zero_tile<0>();
  zero_tile<1>();
  if constexpr (kIsTall) {
    zero_tile<2>();
    zero_tile<3>();
  }
  for (int64_t step = 0; step < num_steps; ++step) {
    if (is_first) {
      // A page ahead: the hardware's own prefetcher stops where a page ends.
#pragma GCC unroll 32
      for (int64_t i = 0; i < kStepBytes; i += 64) __builtin_prefetch(weights + 4096 + i);
    }
    multiply_step<kIsTall>(x, x_stride, weights);
    x += kTileRowBytes;
    weights += kStepBytes;
  }
  if (rest != nullptr) multiply_step<kIsTall>(rest->x, kTileRowBytes, rest->weights);
  store_tile<0>(sums, kPairBytes);
  store_tile<1>(sums + kPanel / 2, kPairBytes);
  if constexpr (kIsTall) {
    store_tile<2>(sums + kTileHeight * kPanel, kPairBytes);
    store_tile<3>(sums + kTileHeight * kPanel + kPanel / 2, kPairBytes);
  }
}

}  // namespace

void linear_on_tiles(const Linear& p, int64_t first_row, int64_t end_row, int64_t begin_panel,
                     int64_t end_panel) {
  const int64_t panel_bytes = packed_panel_bytes(p.dtype, p.num_inputs);
  const int64_t num_steps = p.num_inputs / kStepInputs;
  const int64_t num_left = p.num_inputs % kStepInputs;
  const int64_t x_stride = p.x_stride * static_cast<int64_t>(sizeof(BFloat16));
  // Blocks of nearly equal height: a last one of few rows would take as long as a full one.
  const int64_t num_blocks = ceil_divide(end_row - first_row, kBlockRows);
  int64_t shaped_for = 0;
  alignas(64) float sums[kBlockRows * kPanel];
  Rest rest;
  if (num_left > 0) memset(&rest, 0, sizeof rest);

  for (int64_t panel = begin_panel; panel < end_panel; ++panel) {
    const char* weights = static_cast<const char*>(p.packed_weight) + panel * panel_bytes;
    if (num_left > 0) {
      memcpy(rest.weights, weights + num_steps * kStepBytes, ceil_divide(num_left, 2) * kPairBytes);
    }
    int64_t row = first_row;
    for (int64_t blocks = num_blocks; blocks > 0; --blocks) {
      const int64_t count = ceil_divide(end_row - row, blocks);
      if (count != shaped_for) configure_tiles(shapes_for(count));
      shaped_for = count;
      const char* x = static_cast<const char*>(p.x) + row * x_stride;
      for (int64_t r = 0; num_left > 0 && r < count; ++r) {
        memcpy(rest.x + r * kTileRowBytes, x + r * x_stride + num_steps * kTileRowBytes,
               num_left * sizeof(BFloat16));
      }
      const auto multiply = count > kTileHeight ? multiply_block<true> : multiply_block<false>;
      multiply(x, x_stride, weights, num_steps, num_left > 0 ? &rest : nullptr, row == first_row,
               sums);
      const int64_t output = panel * kPanel;
      const int64_t num_outputs = min_of<int64_t>(kPanel, p.num_outputs - output);
      store_rows(p, row, output, count, num_outputs, sums);
      row += count;
    }
  }
  release_tiles();
}

}  // namespace vllm_lite::VLLM_LITE_ISA
