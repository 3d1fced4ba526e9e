// AMX's tile unit: eight registers of up to 16 rows of 64 bytes, in shapes that a thread sets
// before use and releases afterwards, so that idle threads have no tiles to save.
//
// Written out as instructions: a compiler's intrinsics take no template argument for a register,
// and some do not say which memory a tile reads, so that the stores before may be left out.
// With VLLM_LITE_EMULATED_TILES the unit is a plain C++ one (cpu/emulation), for tests.
#pragma once

#include "cpu/kernels/simd.h"

#if defined(VLLM_LITE_EMULATED_TILES)
#include "cpu/emulation/tile_unit.h"
#define VLLM_LITE_HAS_TILES 1
#elif defined(__AMX_TILE__) && defined(__AMX_BF16__) && defined(__AMX_INT8__)
#define VLLM_LITE_HAS_TILES 1
#else
#define VLLM_LITE_HAS_TILES 0
#endif

#if VLLM_LITE_HAS_TILES

namespace vllm_lite::VLLM_LITE_ISA {

constexpr int kTileHeight = 16;
constexpr int kTileRowBytes = 64;

// What `ldtilecfg` reads. A tile without a shape may not be used.
struct alignas(64) TileShapes {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};

  void set(int tile, int64_t num_rows, int64_t num_row_bytes) {
    rows[tile] = static_cast<uint8_t>(num_rows);
    row_bytes[tile] = static_cast<uint16_t>(num_row_bytes);
  }
};

#if defined(VLLM_LITE_EMULATED_TILES)

static inline void configure_tiles(const TileShapes& shapes) {
  emulation::tile_unit().load_config(&shapes);
}
static inline void release_tiles() { emulation::tile_unit().release(); }
template <int kTile>
static inline void zero_tile() {
  emulation::tile_unit().zero(kTile);
}
template <int kTile>
static inline void load_tile(const void* from, int64_t stride) {
  emulation::tile_unit().load(kTile, from, stride);
}
template <int kTile>
static inline void store_tile(void* to, int64_t stride) {
  emulation::tile_unit().store(kTile, to, stride);
}
template <int kSums, int kA, int kB>
static inline void add_bfloat16_products() {
  emulation::tile_unit().add_bfloat16_products(kSums, kA, kB);
}
template <int kSums, int kA, int kB>
static inline void add_byte_products() {
  emulation::tile_unit().add_byte_products(kSums, kA, kB, true, false);
}

#else

// Sets all shapes and zeroes all tiles.
static inline void configure_tiles(const TileShapes& shapes) {
  asm volatile("ldtilecfg %0" ::"m"(shapes));
}
static inline void release_tiles() { asm volatile("tilerelease" ::); }

template <int kTile>
static inline void zero_tile() {
  asm volatile("tilezero %%tmm%c0" ::"i"(kTile));
}
// Rows are `stride` bytes apart in memory; only a tile's own bytes are read or written.
template <int kTile>
static inline void load_tile(const void* from, int64_t stride) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride), "i"(kTile) : "memory");
}
template <int kTile>
static inline void store_tile(void* to, int64_t stride) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(stride), "i"(kTile) : "memory");
}
// Sums [R, C] in float32 += A [R, 2 K] * B [K, C] of bfloat16 pairs. Subnormal numbers count as zero.
template <int kSums, int kA, int kB>
static inline void add_bfloat16_products() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kSums), "i"(kA), "i"(kB));
}
// Sums [R, C] in int32 += A [R, 4 K] of signed bytes * B [K, C] of fours of unsigned bytes.
template <int kSums, int kA, int kB>
static inline void add_byte_products() {
  asm volatile("tdpbsud %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kSums), "i"(kA), "i"(kB));
}

#endif

}  // namespace vllm_lite::VLLM_LITE_ISA

#endif
