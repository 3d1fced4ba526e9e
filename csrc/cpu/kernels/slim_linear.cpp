// Products with slim panels: the sums of linear.cpp, bit for bit.
//
// A chunk of inputs lies unpacked in the first-level cache and is multiplied by all rows; meanwhile
// the first rows' product unpacks the next. Sums rest in memory between chunks.
#include "cpu/kernels/kernels.h"
#include "cpu/kernels/register_tile.h"
#include "cpu/kernels/slim_panel.h"
#include "cpu/kernels/store_rows.h"

namespace vllm_lite::VLLM_LITE_ISA {
namespace {

// Rows that go through the panels together.
constexpr int64_t kBlockRows = 192;
// Inputs of a chunk. Of few rows two chunks and x fit into the first-level cache; of many, the way of
// sums to memory and back would take longer than it saves. The first chunk of all, which nothing is
// multiplied beside, is always a short one.
constexpr int64_t kChunk = 96;
constexpr int64_t kManyRows = 49;
constexpr int64_t kChunkOfManyRows = 192;
// Unpacking on the way pays where a tile is a whole panel wide.
constexpr bool kUnpacksOnTheWay = kTileOutputs == kPanel;

// kRows rows from x on by kTileOutputs outputs of an unpacked chunk, added to sums [kRows, kPanel]
// unless it is a panel's first. Unpacks groups of `next` on the way if kUnpacks; returns how many.
template <int kRows, bool kUnpacks>
int64_t multiply_tile(const BFloat16* x, int64_t x_stride, const SlimChunk& chunk,
                      const BFloat16* weights, float* sums_in_memory,
                      [[maybe_unused]] const SlimChunk& next) {
  // Few pointers to rows, so that they and all else stay in registers.
  constexpr int kBaseRows = 4;
  constexpr int kBases = (kRows + kBaseRows - 1) / kBaseRows;
  Vec sums[kRows][kTileVectors] = {};
  if (chunk.first_input > 0) {
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < kTileVectors; ++v) {
        sums[r][v] = load(sums_in_memory + r * kPanel + v * kLanes);
      }
    }
  }
  const BFloat16* rows[kBases];
#pragma GCC unroll 16
  for (int i = 0; i < kBases; ++i) rows[i] = x + i * kBaseRows * x_stride;
  const auto step = [&](auto load_x) __attribute__((always_inline)) {
    BitsVec w[kTileVectors];
    // One by one: as an array, they would take a way through memory.
#pragma GCC unroll 4
    for (int v = 0; v < kTileVectors; ++v) memcpy(&w[v], weights + v * 2 * kLanes, sizeof w[v]);
    weights += 2 * kPanel;
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const uint32_t value = load_x(rows[r / kBaseRows] + r % kBaseRows * x_stride);
#pragma GCC unroll 4
      for (int v = 0; v < kTileVectors; ++v) sums[r][v] = add_pair_product(sums[r][v], w[v], value);
    }
#pragma GCC unroll 16
    for (int i = 0; i < kBases; ++i) rows[i] += 2;
  };
  int64_t unpacked = 0;
  if constexpr (kUnpacks) {
    const SlimGroup* from = next.from;
    BFloat16* to = next.to;
    const SlimExponents exponents = next.exponents;
    unpacked = min_of(chunk.num_inputs / kSlimGroupInputs, next.num_groups);
    for (const BFloat16* end = x + unpacked * kSlimGroupInputs; rows[0] != end;) {
      unpack_pair(from, 0, exponents, to);
      step(load_pair);
      unpack_pair(from, 1, exponents, to);
      step(load_pair);
      ++from;
      to += kSlimGroupSize;
    }
  }
  for (const BFloat16* end = x + chunk.num_inputs / 2 * 2; rows[0] != end;) step(load_pair);
  if (chunk.num_inputs % 2 != 0) step(load_last);

#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kTileVectors; ++v) {
      store(sums_in_memory + r * kPanel + v * kLanes, sums[r][v]);
    }
  }
  return unpacked;
}

template <bool kUnpacks, int kRows = kTileRows>
int64_t multiply_rows(int64_t count, const BFloat16* x, int64_t x_stride, const SlimChunk& chunk,
                      const BFloat16* weights, float* sums, const SlimChunk& next) {
  if constexpr (kRows == 1) {
    return multiply_tile<1, kUnpacks>(x, x_stride, chunk, weights, sums, next);
  } else if (count >= kRows) {
    return multiply_tile<kRows, kUnpacks>(x, x_stride, chunk, weights, sums, next);
  } else {
    return multiply_rows<kUnpacks, kRows - 1>(count, x, x_stride, chunk, weights, sums, next);
  }
}

// Asks memory for a share of what comes after `next`, as long again, on its way to be unpacked: the
// first rows' product alone would wait for it.
void ask_for_share(const SlimChunk& next, int64_t share, int64_t num_shares) {
  const int64_t bytes = next.num_groups * kSlimGroupBytes;
  const char* after = reinterpret_cast<const char*>(next.from) + bytes;
  const int64_t end = bytes * (share + 1) / num_shares;
  for (int64_t i = bytes * share / num_shares; i < end; i += 64) {
    __builtin_prefetch(after + i, 0, 2);
  }
}

// Adds a chunk's part to sums [num_rows, kPanel]; the groups of `next` that are unpacked then.
int64_t multiply_chunk(const Linear& p, int64_t first_row, int64_t num_rows, const SlimChunk& chunk,
                       float* sums, const SlimChunk& next) {
  int64_t unpacked = 0;
  for (int64_t part = 0; part < kPanel; part += kTileOutputs) {
    const BFloat16* weights = chunk.to + part * 2;
    int64_t row = 0;
    // Tiles of nearly equal height: a last tile of one row would be as slow as a full one.
    const int64_t num_tiles = ceil_divide(num_rows, kTileRows);
    for (int64_t tiles = num_tiles; tiles > 0; --tiles) {
      const int64_t count = ceil_divide(num_rows - row, tiles);
      if (num_rows >= kManyRows) ask_for_share(next, num_tiles - tiles, num_tiles);
      const BFloat16* x =
          static_cast<const BFloat16*>(p.x) + (first_row + row) * p.x_stride + chunk.first_input;
      float* tile = sums + row * kPanel + part;
      if (kUnpacksOnTheWay && row == 0) {
        unpacked =
            multiply_rows<kUnpacksOnTheWay>(count, x, p.x_stride, chunk, weights, tile, next);
      } else {
        multiply_rows<false>(count, x, p.x_stride, chunk, weights, tile, next);
      }
      row += count;
    }
  }
  return unpacked;
}

// At most kBlockRows rows.
void multiply_block(const Linear& p, int64_t row, int64_t num_rows, int64_t begin, int64_t end) {
  alignas(64) float sums[kBlockRows * kPanel];
  alignas(64) BFloat16 unpacked[2][kChunkOfManyRows * kPanel];
  const int64_t size = num_rows < kManyRows ? kChunk : kChunkOfManyRows;
  SlimReader reader(p, begin, end);
  SlimChunk chunk = reader.next(unpacked[0], kChunk);
  reader.finish(chunk, 0);
  int64_t output = begin * kPanel;
  for (int other = 1; chunk.num_groups > 0; other = 1 - other) {
    const SlimChunk next = reader.next(unpacked[other], size);
    reader.finish(next, multiply_chunk(p, row, num_rows, chunk, sums, next));
    if (chunk.is_last) {
      store_rows(p, row, output, num_rows, min_of<int64_t>(kPanel, p.num_outputs - output), sums);
      output += kPanel;
    }
    chunk = next;
  }
}

}  // namespace

void slim_linear(const Linear& p, int64_t first_row, int64_t end_row, int64_t begin_panel,
                 int64_t end_panel) {
  for (int64_t row = first_row; row < end_row; row += kBlockRows) {
    multiply_block(p, row, min_of(kBlockRows, end_row - row), begin_panel, end_panel);
  }
}

}  // namespace vllm_lite::VLLM_LITE_ISA
