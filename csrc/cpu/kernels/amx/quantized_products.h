// GEMMs of quantised rows and unpacked codes on tiles. Integer sums are the same on any
// unit, so tiles are used only for enough rows to fill them.
#pragma once

#include "cpu/kernels/amx/tiles.h"
#include "cpu/kernels/quantized_unpack.h"

namespace vllm_lite::VLLM_LITE_ISA {

#if VLLM_LITE_HAS_TILES

// Fewer rows are as fast without tiles: most of the time goes to scaling sums.
constexpr int64_t kFewestTileRows = 24;

// Products of up to kTileHeight rows by a chunk.
struct TileProducts {
  alignas(64) int32_t sums[kChunkParts][kTileHeight][kPanel];
};

// The unit's shapes for parts of 1 / kParts of a group, while it lives. Rows go through a chunk in
// blocks of nearly equal height, of which there are two at most.
template <int kParts>
class QuantizedTiles {
 public:
  explicit QuantizedTiles(int64_t num_rows) : num_blocks_(ceil_divide(num_rows, kTileHeight)) {
    is_used_ = num_rows >= kFewestTileRows;
    if (!is_used_) return;
    tall_ = ceil_divide(num_rows, num_blocks_);
    TileShapes shapes;
    shapes.set(kCodes, kLines, kTileRowBytes);
    shapes.set(kCodes + 1, kLines, kTileRowBytes);
    for (int is_short = 0; is_short < 2; ++is_short) {
      shapes.set(kTall + kShort * is_short + kX, tall_ - is_short, kLines * 4);
      for (int half = 0; half < 2; ++half) {
        shapes.set(kTall + kShort * is_short + half, tall_ - is_short, kTileRowBytes);
      }
    }
    configure_tiles(shapes);
  }
  ~QuantizedTiles() {
    if (is_used_) release_tiles();
  }
  QuantizedTiles(const QuantizedTiles&) = delete;
  QuantizedTiles& operator=(const QuantizedTiles&) = delete;

  bool is_used() const { return is_used_; }
  int64_t num_blocks() const { return num_blocks_; }

  // Products of `count` rows from `x` on by the first outputs of a chunk: all, or its lower half.
  // `count` is the height of a block; groups of x are x_stride apart.
  void multiply(const Chunk& chunk, int num_groups, bool is_whole, const QuantizedGroup* x,
                int64_t x_stride, int64_t count, TileProducts& to) const {
    const auto with = is_whole ? (count == tall_ ? multiply_block<kTall, true>
                                                 : multiply_block<kShort, true>)
                               : (count == tall_ ? multiply_block<kTall, false>
                                                 : multiply_block<kShort, false>);
    with(chunk, num_groups, x, x_stride, to);
  }

 private:
  // A block has three tiles from kTall or kShort on: sums of the panel's halves, and x.
  static constexpr int kTall = 0, kShort = 3, kX = 2, kCodes = 6;
  static constexpr int kLines = kGroupLines / kParts;

  template <int kBlock, bool kIsWhole>
  static void multiply_block(const Chunk& chunk, int num_groups, const QuantizedGroup* x,
                             int64_t x_stride, TileProducts& to) {
    constexpr int64_t kLineBytes = sizeof chunk.codes[0];
    static_assert(kLineBytes == 2 * kTileRowBytes);
    const char* codes = reinterpret_cast<const char*>(chunk.codes);
    for (int g = 0; g < num_groups; ++g, x += x_stride) {
#pragma GCC unroll 2
      for (int part = 0; part < kParts; ++part, codes += kLines * kLineBytes) {
        int32_t* sums = to.sums[2 * g + part][0];
        load_tile<kBlock + kX>(x->codes + part * kLines * 4, sizeof *x);
        load_tile<kCodes>(codes, kLineBytes);
        zero_tile<kBlock>();
        add_byte_products<kBlock, kBlock + kX, kCodes>();
        store_tile<kBlock>(sums, kPanel * 4);
        if constexpr (kIsWhole) {
          load_tile<kCodes + 1>(codes + kTileRowBytes, kLineBytes);
          zero_tile<kBlock + 1>();
          add_byte_products<kBlock + 1, kBlock + kX, kCodes + 1>();
          store_tile<kBlock + 1>(sums + kHalfPanel, kPanel * 4);
        }
      }
    }
  }

  int64_t num_blocks_;
  int64_t tall_ = 0;
  bool is_used_ = false;
};

#else

template <int kParts>
struct QuantizedTiles {
  explicit QuantizedTiles(int64_t) {}
};

#endif

}  // namespace vllm_lite::VLLM_LITE_ISA
