// Small products of known numbers, by the kernels themselves and by plain loops.
#include "cpu/kernels/amx/products.h"
#include "cpu/kernels/kernels.h"

namespace vllm_lite::VLLM_LITE_ISA {
namespace {

// Both halves of a block of rows and of a panel, a second panel, and inputs that fill no step.
constexpr int kRows = 21, kInputs = 75, kOutputs = 40;
constexpr int64_t kPackedBytes = 2 * kPanel * 4 * ((kInputs + 1) / 2);

// Small whole numbers, so that bfloat16 holds them and every sum is exact.
int x_at(int row, int input) { return (row * 7 + input * 3) % 11 - 5; }
int weight_at(int output, int input) { return (output * 5 + input * 2) % 13 - 6; }

bool multiply_bfloat16_rightly() {
  BFloat16 x[kRows][kInputs], weight[kOutputs][kInputs];
  alignas(64) uint8_t packed[kPackedBytes] = {};
  float out[kRows][kOutputs];
  for (int i = 0; i < kInputs; ++i) {
    for (int r = 0; r < kRows; ++r) from_float(&x[r][i], static_cast<float>(x_at(r, i)));
    for (int o = 0; o < kOutputs; ++o) {
      from_float(&weight[o][i], static_cast<float>(weight_at(o, i)));
    }
  }
  pack_linear({DType::kBFloat16, weight, kInputs, packed, 0, kOutputs, kInputs, nullptr}, 0, 2);
  linear_on_tiles({DType::kBFloat16, x, kInputs, packed, nullptr, kOutputs, kInputs,
                   DType::kFloat32, out, kOutputs},
                  0, kRows, 0, 2);
  bool is_right = true;
  for (int r = 0; r < kRows; ++r) {
    for (int o = 0; o < kOutputs; ++o) {
      int sum = 0;
      for (int i = 0; i < kInputs; ++i) sum += x_at(r, i) * weight_at(o, i);
      is_right &= out[r][o] == static_cast<float>(sum);
    }
  }
  return is_right;
}

bool multiply_bytes_rightly() {
  constexpr int kLines = 8, kColumns = kTileRowBytes / 4;
  alignas(64) int8_t a[kTileHeight][kLines * 4];
  alignas(64) uint8_t b[kLines][kTileRowBytes];
  alignas(64) int32_t sums[kTileHeight][kColumns];
  for (int i = 0; i < kLines * 4; ++i) {
    for (int r = 0; r < kTileHeight; ++r) a[r][i] = static_cast<int8_t>((r * 37 + i * 11) % 255 - 127);
    for (int c = 0; c < kColumns; ++c) {
      b[i / 4][c * 4 + i % 4] = static_cast<uint8_t>((c * 29 + i * 17) % 256);
    }
  }
  TileShapes shapes;
  shapes.set(0, kTileHeight, kTileRowBytes);
  shapes.set(2, kTileHeight, kLines * 4);
  shapes.set(6, kLines, kTileRowBytes);
  configure_tiles(shapes);
  load_tile<2>(a, sizeof a[0]);
  load_tile<6>(b, sizeof b[0]);
  zero_tile<0>();
  add_byte_products<0, 2, 6>();
  add_byte_products<0, 2, 6>();
  store_tile<0>(sums, sizeof sums[0]);
  release_tiles();
  bool is_right = true;
  for (int r = 0; r < kTileHeight; ++r) {
    for (int c = 0; c < kColumns; ++c) {
      int sum = 0;
      for (int i = 0; i < kLines * 4; ++i) sum += 2 * a[r][i] * b[i / 4][c * 4 + i % 4];
      is_right &= sums[r][c] == sum;
    }
  }
  return is_right;
}

}  // namespace

bool tiles_multiply_rightly() { return multiply_bfloat16_rightly() && multiply_bytes_rightly(); }

}  // namespace vllm_lite::VLLM_LITE_ISA
