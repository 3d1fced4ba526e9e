// Products of bfloat16 rows and packed weights on tiles; see kernels/linear.cpp for the layout.
//
// A step takes 32 inputs of a panel: pairs of 16 outputs side by side are what a tile holds, so
// the two halves of a panel are two tiles whose rows lie in turn. Steps go in order and the last
// is filled up with zeros. However many rows there are, all are multiplied on tiles, since the
// unit adds up in an order of its own: a row's result depends on nothing else.
//
// Slim panels are unpacked in chunks of whole steps, the next one while the first rows are multiplied
// by one. Sums rest in memory between chunks.
#include "cpu/kernels/amx/products.h"
#include "cpu/kernels/slim_panel.h"
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

// Inputs of consecutive rows of x and of a panel, in whole steps.
struct Steps {
  const char* x;
  int64_t x_stride;  // bytes
  const char* weights;
  int64_t count;
  const Rest* rest;  // null, or the step after these
  bool is_first;     // of the panel
};

// Sums [kBlockRows, kPanel] over `steps`, on top of what they are unless those are a panel's first.
// Calls before_step(i) before each but the rest.
template <bool kIsTall, class BeforeStep>
void multiply_block(const Steps& steps, float* sums, BeforeStep&& before_step) {
  if (steps.is_first) {
    zero_tile<0>();
    zero_tile<1>();
    if constexpr (kIsTall) {
      zero_tile<2>();
      zero_tile<3>();
    }
  } else {
    load_tile<0>(sums, kPairBytes);
    load_tile<1>(sums + kPanel / 2, kPairBytes);
    if constexpr (kIsTall) {
      load_tile<2>(sums + kTileHeight * kPanel, kPairBytes);
      load_tile<3>(sums + kTileHeight * kPanel + kPanel / 2, kPairBytes);
    }
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

// One after the other, the blocks of rows [first_row, end_row) by inputs of a panel.
class RowBlocks {
 public:
  RowBlocks(const Linear& p, int64_t first_row, int64_t end_row)
      : p_(p), first_row_(first_row), end_row_(end_row) {
    if (num_left() > 0) memset(&rest_, 0, sizeof rest_);
  }

  // Blocks of nearly equal height: a last one of few rows would take as long as a full one.
  int64_t count() const { return ceil_divide(end_row_ - first_row_, kBlockRows); }

  // Inputs [first, first + num_inputs) of the panel, whose weights are given: whole steps, unless
  // they are its last. Calls first_block_step(i) before each step of the first block, and
  // finish(row, count, sums) with the sums so far of each; sums_of(row) is where they are.
  template <class FirstBlockStep, class SumsOf, class Finish>
  void multiply(const char* weights, int64_t first, int64_t num_inputs,
                FirstBlockStep&& first_block_step, SumsOf&& sums_of, Finish&& finish) {
    const int64_t x_stride = p_.x_stride * static_cast<int64_t>(sizeof(BFloat16));
    const int64_t num_steps = num_inputs / kStepInputs;
    const int64_t num_left = num_inputs % kStepInputs;
    if (num_left > 0) {
      memcpy(rest_.weights, weights + num_steps * kStepBytes, ceil_divide(num_left, 2) * kPairBytes);
    }
    int64_t row = first_row_;
    for (int64_t blocks = count(); blocks > 0; --blocks) {
      const int64_t height = ceil_divide(end_row_ - row, blocks);
      if (height != shaped_for_) configure_tiles(shapes_for(height));
      shaped_for_ = height;
      const char* x = static_cast<const char*>(p_.x) + row * x_stride + first * sizeof(BFloat16);
      for (int64_t r = 0; num_left > 0 && r < height; ++r) {
        memcpy(rest_.x + r * kTileRowBytes, x + r * x_stride + num_steps * kTileRowBytes,
               num_left * sizeof(BFloat16));
      }
      const Steps steps = {x,          x_stride, weights, num_steps, num_left > 0 ? &rest_ : nullptr,
                           first == 0};
      float* sums = sums_of(row);
      const bool is_tall = height > kTileHeight;
      if (row == first_row_) {
        is_tall ? multiply_block<true>(steps, sums, first_block_step)
                : multiply_block<false>(steps, sums, first_block_step);
      } else {
        const auto nothing = [](int64_t) {};
        is_tall ? multiply_block<true>(steps, sums, nothing)
                : multiply_block<false>(steps, sums, nothing);
      }
      finish(row, height, sums);
      row += height;
    }
  }

 private:
  int64_t num_left() const { return p_.num_inputs % kStepInputs; }

  const Linear& p_;
  int64_t first_row_;
  int64_t end_row_;
  int64_t shaped_for_ = 0;
  Rest rest_;
};

void store_block(const Linear& p, int64_t panel, int64_t row, int64_t count, const float* sums) {
  const int64_t output = panel * kPanel;
  store_rows(p, row, output, count, min_of<int64_t>(kPanel, p.num_outputs - output), sums);
}

// ---- slim panels

constexpr int64_t kStepGroups = kStepInputs / kSlimGroupInputs;
// Rows that go through the panels together.
constexpr int64_t kSlimRows = 192;
// Inputs of a chunk, whole steps: of one block two stay in the first-level cache. The sums of several
// take longer to memory and back than weights from the second level.
constexpr int64_t kChunk = 256;
constexpr int64_t kChunkOfManyRows = 2048;

void multiply_slim_panels(const Linear& p, int64_t first_row, int64_t end_row, int64_t begin,
                          int64_t end) {
  alignas(64) float sums[kSlimRows * kPanel];
  alignas(64) BFloat16 unpacked[2][kChunkOfManyRows * kPanel];
  RowBlocks rows(p, first_row, end_row);
  const int64_t size = rows.count() == 1 ? kChunk : kChunkOfManyRows;
  SlimReader reader(p, begin, end);
  SlimChunk chunk = reader.next(unpacked[0], kChunk);
  reader.finish(chunk, 0);
  int64_t panel = begin;
  for (int other = 1; chunk.num_groups > 0; other = 1 - other) {
    const SlimChunk next = reader.next(unpacked[other], size);
    int64_t done = 0;
    const auto unpack_step = [&](int64_t) {
      const int64_t until = min_of(done + kStepGroups, next.num_groups);
      unpack_groups(next, done, until);
      done = until;
    };
    rows.multiply(
        reinterpret_cast<const char*>(chunk.to), chunk.first_input, chunk.num_inputs, unpack_step,
        [&](int64_t row) { return sums + (row - first_row) * kPanel; },
        [&](int64_t row, int64_t count, const float* of_block) {
          if (chunk.is_last) store_block(p, panel, row, count, of_block);
        });
    reader.finish(next, done);
    if (chunk.is_last) ++panel;
    chunk = next;
  }
}

// ---- plain panels

void multiply_panels(const Linear& p, int64_t first_row, int64_t end_row, int64_t begin,
                     int64_t end) {
  alignas(64) float sums[kBlockRows * kPanel];
  const int64_t panel_bytes = packed_panel_bytes(p.dtype, p.num_inputs);
  RowBlocks rows(p, first_row, end_row);
  for (int64_t panel = begin; panel < end; ++panel) {
    const char* weights = static_cast<const char*>(p.packed_weight) + panel * panel_bytes;
    const auto ask = [&](int64_t step) {
      // A page ahead: the hardware's own prefetcher stops where a page ends.
      const char* ahead = weights + step * kStepBytes + 4096;
#pragma GCC unroll 32
      for (int64_t i = 0; i < kStepBytes; i += 64) __builtin_prefetch(ahead + i);
    };
    rows.multiply(
        weights, 0, p.num_inputs, ask, [&](int64_t) { return sums; },
        [&](int64_t row, int64_t count, const float* of_block) {
          store_block(p, panel, row, count, of_block);
        });
  }
}

}  // namespace

void linear_on_tiles(const Linear& p, int64_t first_row, int64_t end_row, int64_t begin_panel,
                     int64_t end_panel) {
  if (p.is_slim) {
    for (int64_t row = first_row; row < end_row; row += kSlimRows) {
      multiply_slim_panels(p, row, min_of(end_row, row + kSlimRows), begin_panel, end_panel);
    }
  } else {
    multiply_panels(p, first_row, end_row, begin_panel, end_panel);
  }
  release_tiles();
}

}  // namespace vllm_lite::VLLM_LITE_ISA
