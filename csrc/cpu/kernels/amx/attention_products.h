// Attention's two GEMMs on tiles: scores of query rows and a block of keys, and weighted sums of
// its values.
//
// Packed keys and values have the tiles' layout, in pairs. Keys may also be used as they are stored:
// they are then the rows that are multiplied, and the queries the pairs, which gives the same sums.
// The unit has its own order of sums, so all rows use it, few or many, and always in whole blocks
// padded with zeros: a row's result depends on nothing else.
#pragma once

#include "cpu/kernels/amx/tiles.h"
#include "cpu/kernels/attention_operands.h"

// The arithmetic around the GEMMs is AVX512-BF16's.
#if VLLM_LITE_HAS_TILES && defined(__AVX512BF16__)
#define VLLM_LITE_HAS_TILE_ATTENTION 1

namespace vllm_lite::VLLM_LITE_ISA {
namespace {

// Sets the unit's shapes for rows of queries during its lifetime.
class AttentionTiles {
 public:
  AttentionTiles() = default;
  ~AttentionTiles() {
    if (height_ > 0) release_tiles();
  }
  AttentionTiles(const AttentionTiles&) = delete;
  AttentionTiles& operator=(const AttentionTiles&) = delete;

  // Scores [count, kKeys] of rows of queries, `row_size` pairs apart. Both they and the keys have
  // zeros after the last of `steps` pairs, up to whole tiles.
  void score(const uint32_t* query, int64_t count, int64_t row_size, const uint32_t* keys,
             int64_t steps, RowsAhead& ahead, float* scores) {
    for (int64_t row = 0; row < count; row += kTileHeight) {
      set_height(min_of<int64_t>(kTileHeight, count - row));
      for_each_column<4>([](auto v) { zero_tile<decltype(v)::value>(); });
      for (int64_t step = 0; step < steps; step += kTilePairs) {
        load_tile<kRows>(query + row * row_size + step, row_size * 4);
        for_each_column<4>([&](auto v) {
          constexpr int kColumn = decltype(v)::value, kBlock = kBlocks + kColumn % 3;
          load_tile<kBlock>(keys + step * kKeys + kColumn * kTilePairs, kKeys * 4);
          add_bfloat16_products<kColumn, kRows, kBlock>();
          ahead.ask(3);
        });
      }
      for_each_column<4>([&](auto v) {
        constexpr int kColumn = decltype(v)::value;
        store_tile<kColumn>(scores + row * kKeys + kColumn * kTilePairs, kKeys * 4);
      });
    }
  }

  // Scores [count, kKeys] of up to kTileHeight rows and keys as they are stored, `key_stride` numbers
  // apart in each group of kTileHeight. `spread` is what spread_queries() made of the rows. Uses as
  // much memory behind kTileHeight rows of scores.
  void score_stored(const uint32_t* spread, int64_t count, const BFloat16* const* keys,
                    int64_t key_stride, int64_t num_keys, int64_t steps, RowsAhead& ahead,
                    float* scores) {
    constexpr int kSums = kBlocks, kStored = kBlocks + 1, kQueries = kBlocks + 2;
    set_height(count);
    float* by_key = scores + kTileHeight * kKeys;  // [num_keys, kTileHeight]
    for (int64_t key = 0; key < num_keys; key += kTileHeight) {
      zero_tile<kSums>();
      for (int64_t step = 0; step < steps; step += kTilePairs) {
        load_tile<kStored>(keys[key] + 2 * step, key_stride * sizeof(BFloat16));
        load_tile<kQueries>(spread + step * kTileHeight, kTileRowBytes);
        add_bfloat16_products<kSums, kStored, kQueries>();
        ahead.ask(4);
      }
      store_tile<kSums>(by_key + key * kTileHeight, kTileRowBytes);
    }
    for (int64_t key = 0; key < num_keys; key += kTileHeight) {
      FoursOfRows rows;
      rows.stride = kTileRowBytes;
      for (int i = 0; i < kTileHeight; i += 4) {
        rows.fours[i / 4] = reinterpret_cast<const char*>(by_key + (key + i) * kTileHeight);
      }
      for (int64_t row = 0; row < count; row += 4) {
        BitsVec words[4];
        load_words(rows, 4 * row, words);
        for (int i = 0; i < 4; ++i) store_words(scores + (row + i) * kKeys + key, words[i]);
      }
    }
  }

  // Queries [count, row_size] as pairs [steps, kTileHeight], zeros in the columns of missing rows.
  static void spread_queries(const uint32_t* query, int64_t count, int64_t row_size, int64_t steps,
                             uint32_t* spread) {
    memset(spread, 0, steps * kTileHeight * sizeof *spread);
    for (int64_t row = 0; row < count; ++row) {
      for (int64_t step = 0; step < steps; ++step) {
        spread[step * kTileHeight + row] = query[row * row_size + step];
      }
    }
  }

  // sums [count, row_size] = sums * rescales + weights [count, kKeys] by values, which are packed
  // [kKeys / 2, row_size]. Weights are bfloat16 at the start of rows of kKeys floats.
  void add_values(const float* weights, const float* rescales, int64_t count,
                  const uint32_t* values, int64_t row_size, RowsAhead& ahead, float* sums) {
    for (int64_t row = 0; row < count; ++row) {
      if (rescales[row] == 1.0f) continue;
      for (int64_t d = 0; d < row_size; d += kLanes) {
        float* at = sums + row * row_size + d;
        store(at, load(at) * rescales[row]);
      }
    }
    for (int64_t row = 0; row < count; row += kTileHeight) {
      set_height(min_of<int64_t>(kTileHeight, count - row));
      for (int64_t d = 0; d < row_size;) {
        const float* from = weights + row * kKeys;
        float* to = sums + row * row_size + d;
        const int64_t columns = min_of<int64_t>(4, (row_size - d) / kTilePairs);
        const auto add = columns == 4   ? add_columns<4>
                         : columns == 3 ? add_columns<3>
                         : columns == 2 ? add_columns<2>
                                        : add_columns<1>;
        add(from, values + d, row_size, ahead, to);
        d += columns * kTilePairs;
      }
    }
  }

 private:
  // Sums of up to four columns of tiles; rows of queries or weights; keys or values.
  static constexpr int kRows = 4, kBlocks = 5;
  static constexpr int kTilePairs = kTileRowBytes / 4;
  static_assert(kKeys == 4 * kTilePairs && 2 * kTileHeight <= kMostGroupRows);

  template <int N>
  struct Column {
    static constexpr int value = N;
  };

  // Calls body(Column<n>) for 0 <= n < N.
  template <int N, class Body>
  static void for_each_column(Body&& body) {
    if constexpr (N > 1) for_each_column<N - 1>(body);
    body(Column<N - 1>{});
  }

  template <int N>
  static void add_columns(const float* weights, const uint32_t* values, int64_t row_size,
                          RowsAhead& ahead, float* sums) {
    for_each_column<N>([&](auto v) {
      constexpr int kColumn = decltype(v)::value;
      load_tile<kColumn>(sums + kColumn * kTilePairs, row_size * 4);
    });
    for (int step = 0; step < kKeys / 2; step += kTilePairs) {
      load_tile<kRows>(weights + step, kKeys * 4);
      for_each_column<N>([&](auto v) {
        constexpr int kColumn = decltype(v)::value, kBlock = kBlocks + kColumn % 3;
        load_tile<kBlock>(values + step * row_size + kColumn * kTilePairs, row_size * 4);
        add_bfloat16_products<kColumn, kRows, kBlock>();
        ahead.ask(5);
      });
    }
    for_each_column<N>([&](auto v) {
      constexpr int kColumn = decltype(v)::value;
      store_tile<kColumn>(sums + kColumn * kTilePairs, row_size * 4);
    });
  }

  void set_height(int64_t height) {
    if (height == height_) return;
    height_ = height;
    TileShapes shapes;
    for (int tile = 0; tile < kBlocks; ++tile) shapes.set(tile, height, kTileRowBytes);
    for (int tile = kBlocks; tile < 8; ++tile) shapes.set(tile, kTilePairs, kTileRowBytes);
    configure_tiles(shapes);
  }

  int64_t height_ = 0;
};

struct BFloat16TileDot : BFloat16PairDot {
  static constexpr int kGroupRows = 2 * kTileHeight;
  static constexpr int kMaxStoredRows = kTileHeight;
  static constexpr bool kIsOnTiles = true;
  using Unit = AttentionTiles;
};

}  // namespace
}  // namespace vllm_lite::VLLM_LITE_ISA

#endif
