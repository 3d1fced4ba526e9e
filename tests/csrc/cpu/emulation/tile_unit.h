// The tile unit of AMX in plain C++, for tests: what the instructions do, after the operations in
// Intel's manual, rounding and zeroing included. What the processor refuses ends the process.
#pragma once

#include <float.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

namespace vllm_lite::emulation {

class TileUnit {
 public:
  static constexpr int kTiles = 8;
  static constexpr int kRows = 16;
  static constexpr int kRowBytes = 64;

  void load_config(const void* from) {
    uint8_t config[64];
    memcpy(config, from, sizeof config);
    release();
    if (config[0] == 0) return;
    require(config[0] == 1, "a palette that there is not");
    require(config[1] == 0, "a start in the middle of a tile, which nothing here does");
    for (int i = 2; i < 16; ++i) require(config[i] == 0, "a reserved byte is set");
    for (int i = 0; i < 16; ++i) {
      uint16_t bytes;
      memcpy(&bytes, config + 16 + 2 * i, sizeof bytes);
      const uint8_t rows = config[48 + i];
      require(i < kTiles || (bytes == 0 && rows == 0), "a shape for a tile that there is not");
      require(bytes <= kRowBytes && rows <= kRows, "a shape that is too large");
      require((bytes == 0) == (rows == 0), "a shape without rows or without columns");
      if (i < kTiles) tiles_[i].rows = rows, tiles_[i].row_bytes = bytes;
    }
    is_configured_ = true;
  }

  void release() {
    is_configured_ = false;
    memset(tiles_, 0, sizeof tiles_);
  }

  bool is_configured() const { return is_configured_; }

  void zero(int tile) { memset(shaped(tile).data, 0, sizeof tiles_[tile].data); }

  void load(int tile, const void* from, int64_t stride) {
    Tile& to = shaped(tile);
    memset(to.data, 0, sizeof to.data);
    for (int row = 0; row < to.rows; ++row) {
      memcpy(to.data[row], static_cast<const char*>(from) + row * stride, to.row_bytes);
    }
  }

  void store(int tile, void* to, int64_t stride) {
    const Tile& from = shaped(tile);
    for (int row = 0; row < from.rows; ++row) {
      memcpy(static_cast<char*>(to) + row * stride, from.data[row], from.row_bytes);
    }
  }

  // TDPBF16PS: even and odd inputs are added up apart, by fused multiply-adds from zero, then
  // together, then to the sums. Subnormal operands and results are zeros, always.
  void add_bfloat16_products(int sums, int a, int b) {
    check_product(sums, a, b);
    Tile& to = tiles_[sums];
    const int columns = to.row_bytes / 4;
    for (int m = 0; m < to.rows; ++m) {
      float even[kRowBytes / 4] = {}, odd[kRowBytes / 4] = {};
      for (int k = 0; k < tiles_[a].row_bytes / 4; ++k) {
        const float a_even = bfloat16_at(a, m, 2 * k), a_odd = bfloat16_at(a, m, 2 * k + 1);
        for (int n = 0; n < columns; ++n) {
          even[n] = flushed(fmaf(a_even, bfloat16_at(b, k, 2 * n), even[n]));
          odd[n] = flushed(fmaf(a_odd, bfloat16_at(b, k, 2 * n + 1), odd[n]));
        }
      }
      for (int n = 0; n < columns; ++n) {
        float sum;
        memcpy(&sum, to.data[m] + 4 * n, sizeof sum);
        sum = flushed(flushed(sum) + flushed(even[n] + odd[n]));
        memcpy(to.data[m] + 4 * n, &sum, sizeof sum);
      }
    }
    zero_beyond(to);
  }

  // TDPBSSD, TDPBSUD, TDPBUSD and TDPBUUD; sums wrap around.
  void add_byte_products(int sums, int a, int b, bool is_a_signed, bool is_b_signed) {
    check_product(sums, a, b);
    Tile& to = tiles_[sums];
    const auto number = [](uint8_t byte, bool is_signed) -> int32_t {
      return is_signed ? static_cast<int8_t>(byte) : byte;
    };
    for (int m = 0; m < to.rows; ++m) {
      for (int k = 0; k < tiles_[a].row_bytes / 4; ++k) {
        for (int n = 0; n < to.row_bytes / 4; ++n) {
          uint32_t sum;
          memcpy(&sum, to.data[m] + 4 * n, sizeof sum);
          for (int i = 0; i < 4; ++i) {
            sum += static_cast<uint32_t>(number(tiles_[a].data[m][4 * k + i], is_a_signed) *
                                         number(tiles_[b].data[k][4 * n + i], is_b_signed));
          }
          memcpy(to.data[m] + 4 * n, &sum, sizeof sum);
        }
      }
    }
    zero_beyond(to);
  }

 private:
  struct Tile {
    uint8_t data[kRows][kRowBytes];
    int rows;
    int row_bytes;
  };

  static void require(bool condition, const char* otherwise) {
    if (condition) return;
    fprintf(stderr, "emulated tiles: %s\n", otherwise);
    abort();
  }

  static float flushed(float x) { return fabsf(x) < FLT_MIN ? copysignf(0.0f, x) : x; }

  Tile& shaped(int tile) {
    require(is_configured_, "used before they have shapes");
    require(tiles_[tile].rows > 0, "a tile without a shape is used");
    return tiles_[tile];
  }

  void check_product(int sums, int a, int b) {
    const Tile &to = shaped(sums), &left = shaped(a), &right = shaped(b);
    require(sums != a && a != b && sums != b, "a product of a tile with itself");
    require(to.row_bytes % 4 == 0 && left.row_bytes % 4 == 0 && right.row_bytes % 4 == 0,
            "columns of a product that are not of four bytes");
    require(to.rows == left.rows && to.row_bytes == right.row_bytes &&
                left.row_bytes / 4 == right.rows,
            "tiles of a product that do not fit together");
  }

  float bfloat16_at(int tile, int row, int i) const {
    uint16_t half;
    memcpy(&half, tiles_[tile].data[row] + 2 * i, sizeof half);
    const uint32_t bits = uint32_t{half} << 16;
    float x;
    memcpy(&x, &bits, sizeof x);
    return flushed(x);
  }

  static void zero_beyond(Tile& tile) {
    for (int row = 0; row < kRows; ++row) {
      const int bytes = row < tile.rows ? tile.row_bytes : 0;
      memset(tile.data[row] + bytes, 0, kRowBytes - bytes);
    }
  }

  bool is_configured_ = false;
  Tile tiles_[kTiles] = {};
};

// This thread's.
inline TileUnit& tile_unit() {
  thread_local TileUnit unit;
  return unit;
}

}  // namespace vllm_lite::emulation
