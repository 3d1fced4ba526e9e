// GEMMs of bfloat16 rows and packed weights on tiles; see kernels/linear.cpp for the layout.
//
// A step takes 32 inputs of a panel: a tile holds pairs of 16 outputs side by side, so
// the two halves of a panel are two tiles with interleaved rows. Steps go in order and the last
// is padded with zeros. Any number of rows is multiplied on tiles, since the
// unit has its own order of sums: a row's result depends on nothing else.
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

// The inputs after the last whole step, padded.
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

// Inputs of consecutive rows of x and of a panel, in whole steps.
struct Steps {
  const char* x;
  int64_t x_stride;  // bytes
  const char* weights;
  int64_t count;
  const Rest* rest;  // null, or the step after these
};

// Writes the sums [kBlockRows, kPanel] over `steps`. Calls before_step(i) before each but the rest.
template <bool kIsTall, class BeforeStep>
void multiply_block(const Steps& steps, float* sums, BeforeStep&& before_step) {
  zero_tile<0>();
  zero_tile<1>();
  if constexpr (kIsTall) {
    zero_tile<2>();
    zero_tile<3>();
  }
  for (int64_t i = 0; i < steps.count; ++i) {
    before_step(i);
    multiply_step<kIsTall>(steps.x + i * kTileRowBytes, steps.x_stride,
                           steps.weights + i * kStepBytes);
  }
  if (steps.rest != nullptr) {
    multiply_step<kIsTall>(steps.rest->x, kTileRowBytes, steps.rest->weights);
  }
  store_tile<0>(sums, kPairBytes);
  store_tile<1>(sums + kPanel / 2, kPairBytes);
  if constexpr (kIsTall) {
    store_tile<2>(sums + kTileHeight * kPanel, kPairBytes);
    store_tile<3>(sums + kTileHeight * kPanel + kPanel / 2, kPairBytes);
  }
}

void multiply_panels(const Linear& p, int64_t first_row, int64_t end_row, int64_t begin,
                     int64_t end) {
  alignas(64) float sums[kBlockRows * kPanel];
  const int64_t panel_bytes = packed_panel_bytes(p.dtype, p.num_inputs);
  const int64_t x_stride = p.x_stride * static_cast<int64_t>(sizeof(BFloat16));
  const int64_t num_steps = p.num_inputs / kStepInputs;
  const int64_t num_left = p.num_inputs % kStepInputs;
  Rest rest;
  if (num_left > 0) memset(&rest, 0, sizeof rest);
  int64_t shaped_for = 0;
  for (int64_t panel = begin; panel < end; ++panel) {
    const char* weights = static_cast<const char*>(p.packed_weight) + panel * panel_bytes;
    if (num_left > 0) {
      memcpy(rest.weights, weights + num_steps * kStepBytes, ceil_divide(num_left, 2) * kPairBytes);
    }
    const auto prefetch = [&](int64_t step) {
      // A page ahead: the hardware's own prefetcher stops where a page ends.
      const char* ahead = weights + step * kStepBytes + 4096;
#pragma GCC unroll 32
      for (int64_t i = 0; i < kStepBytes; i += 64) __builtin_prefetch(ahead + i);
    };
    const auto nothing = [](int64_t) {};
    // Blocks of nearly equal height: a last one of few rows would take as long as a full one.
    int64_t row = first_row;
    for (int64_t blocks = ceil_divide(end_row - first_row, kBlockRows); blocks > 0; --blocks) {
      const int64_t height = ceil_divide(end_row - row, blocks);
      if (height != shaped_for) configure_tiles(shapes_for(height));
      shaped_for = height;
      const char* x = static_cast<const char*>(p.x) + row * x_stride;
      for (int64_t r = 0; num_left > 0 && r < height; ++r) {
        memcpy(rest.x + r * kTileRowBytes, x + r * x_stride + num_steps * kTileRowBytes,
               num_left * sizeof(BFloat16));
      }
      const Steps steps = {x, x_stride, weights, num_steps, num_left > 0 ? &rest : nullptr};
      const bool is_tall = height > kTileHeight;
      if (row == first_row) {
        is_tall ? multiply_block<true>(steps, sums, prefetch)
                : multiply_block<false>(steps, sums, prefetch);
      } else {
        is_tall ? multiply_block<true>(steps, sums, nothing)
                : multiply_block<false>(steps, sums, nothing);
      }
      const int64_t output = panel * kPanel;
      store_rows(p, row, output, height, min_of<int64_t>(kPanel, p.num_outputs - output), sums);
      row += height;
    }
  }
}

}  // namespace

void linear_on_tiles(const Linear& p, int64_t first_row, int64_t end_row, int64_t begin_panel,
                     int64_t end_panel) {
  multiply_panels(p, first_row, end_row, begin_panel, end_panel);
  release_tiles();
}

}  // namespace vllm_lite::VLLM_LITE_ISA
