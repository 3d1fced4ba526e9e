// Matrix products with packed weights: out [T, M] = x [T, N] * weight [M, N] transposed.
//
// Weights lie in panels of kPanel outputs. A panel holds its inputs in order, float32 one by one
// and bfloat16 in pairs: for each input (pair) the values of all kPanel outputs side by side. So
// a GEMM reads its weights once, from front to back, for any number of rows.
//
// One accumulator sums one output over all inputs in order: a row's result depends neither on
// the other rows nor on how the work is divided. (On tiles the order is another: amx/linear.cpp.)
#include "cpu/isa.h"
#include "cpu/kernels/amx/products.h"
#include "cpu/kernels/kernels.h"
#include "cpu/kernels/register_tile.h"
#include "cpu/kernels/store_rows.h"

namespace vllm_lite::VLLM_LITE_ISA {
namespace {

// What one step along the inputs takes from x and from a panel: one float32, or a bfloat16 pair.
static inline void add_product(Vec& sum, Vec weights, float x) {
  sum = multiply_add(weights, broadcast(x), sum);
}
static inline void add_product(Vec& sum, BitsVec weights, uint32_t x) {
  sum = add_pair_product(sum, weights, x);
}

// Where pairs have no instruction, rows of x are widened piece by piece: a float32 in memory is
// broadcast for nothing.
struct WidePair {
  float low, high;
};
static inline void add_product(Vec& sum, BitsVec weights, WidePair x) {
  const Vec low = bit_cast<Vec>(weights << 16), high = bit_cast<Vec>(weights & 0xffff0000u);
  sum = multiply_add(low, broadcast(x.low), sum);
  sum = multiply_add(high, broadcast(x.high), sum);
}

struct Float32Steps {
  using Element = float;
  using Weights = Vec;
  static constexpr int64_t kInputs = 1;
  static constexpr int64_t kPiece = 0;
  static float load_x(const float* x) { return *x; }
  static float load_last(const float* x) { return *x; }
};
struct BFloat16Steps {
  using Element = BFloat16;
  using Weights = BitsVec;
  static constexpr int64_t kInputs = 2;
#if VLLM_LITE_HAS_PAIR_PRODUCTS
  static constexpr int64_t kPiece = 0;
  static uint32_t load_x(const BFloat16* x) { return load_pair(x); }
  static uint32_t load_last(const BFloat16* x) { return VLLM_LITE_ISA::load_last(x); }
#else
  static constexpr int64_t kPiece = 256;  // inputs that are widened together
  static WidePair load_x(const float* x) { return {x[0], x[1]}; }
  static WidePair load_last(const float* x) { return {x[0], 0.0f}; }
#endif
};

constexpr int64_t kAhead = 8192;  // bytes
// Rows, few enough, whose tile has all of a panel's outputs: two tiles would read every other line
// of the panel each.
#if defined(__AVX2__) && !defined(__AVX512F__)
constexpr int kWideRows = 2, kWideVectors = kPanel / kLanes;
#else
constexpr int kWideRows = 0, kWideVectors = kTileVectors;
#endif

// The weights that a tile asks memory for while it multiplies its own.
struct WeightsAhead {
  const char* weights;
  int64_t step;  // bytes from one step of inputs to the next
};

// kRows rows by kVectors vectors of outputs, over all inputs.
template <class Steps, int kRows, int kCache, int kVectors>
void multiply_tile(const Linear& p, int64_t row, int64_t output, const void* weights,
                   WeightsAhead ahead) {
  using Element = typename Steps::Element;
  constexpr int kOutputs = kVectors * kLanes;
  const Element* x = static_cast<const Element*>(p.x) + row * p.x_stride;
  const char* panel = static_cast<const char*>(weights);
  Vec sums[kRows][kVectors] = {};

  const auto step = [&](auto load, const auto* from, int64_t stride) {
    // One by one: as an array they would go through memory.
    typename Steps::Weights w[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) memcpy(&w[v], panel + v * sizeof w[v], sizeof w[v]);
    // Every line: the hardware prefetcher stops at page ends.
#pragma GCC unroll 2
    for (size_t line = 0; line < sizeof w; line += 64) {
      if constexpr (kCache == 1) {
        __builtin_prefetch(panel + kAhead + line);
      } else {
        __builtin_prefetch(ahead.weights + line, 0, 2);
      }
    }
    ahead.weights += ahead.step;
    panel += kPanel * 4;
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const auto value = load(from + r * stride);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) add_product(sums[r][v], w[v], value);
    }
  };
  const auto walk = [&](const auto* from, int64_t stride, int64_t count) {
    int64_t input = 0;
    for (; input + Steps::kInputs <= count; input += Steps::kInputs) {
      step(Steps::load_x, from + input, stride);
    }
    if (input < count) step(Steps::load_last, from + input, stride);
  };
  if constexpr (Steps::kPiece == 0) {
    walk(x, p.x_stride, p.num_inputs);
  } else {
    alignas(64) float wide[kRows * Steps::kPiece];
    for (int64_t first = 0; first < p.num_inputs; first += Steps::kPiece) {
      const int64_t size = min_of(Steps::kPiece, p.num_inputs - first);
      for (int r = 0; r < kRows; ++r) {
        for_each_vector(size, [&](int64_t i, int64_t count) {
          store_upto(wide + r * Steps::kPiece + i, load_upto(x + r * p.x_stride + first + i, count),
                     count);
        });
      }
      walk(wide, Steps::kPiece, size);
    }
  }

  // Unrolled: accumulators whose address is taken would live in memory.
  float tile[kRows * kOutputs];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) store(tile + r * kOutputs + v * kLanes, sums[r][v]);
  }
  const int64_t num_outputs = min_of<int64_t>(kOutputs, p.num_outputs - output);
  store_rows<kOutputs>(p, row, output, kRows, num_outputs, tile);
}

// Calls body(row, Constant<rows>) for tiles of nearly equal height: a last tile of one row would be
// as slow as a full one.
template <int kTallest = kTileRows, class Body>
inline void for_each_tile(int64_t row, int64_t end_row, Body&& body) {
  for (int64_t tiles = ceil_divide(end_row - row, kTallest); tiles > 0; --tiles) {
    const int64_t count = ceil_divide(end_row - row, tiles);
    with_constant<kTallest>(count, [&](auto rows) { body(row, rows); });
    row += count;
  }
}

// Asks for weights ahead in kCache: the first, of the tile's own panel; or the second, where each
// tile asks for its part of the next panel, so that no tile waits for all of its own.
template <class Steps, int kCache, int kVectors = kTileVectors>
void multiply_panels(const Linear& p, int64_t first_row, int64_t end_row, int64_t begin,
                     int64_t end) {
  constexpr int64_t kStep = kPanel * 4;
  constexpr int kTallest = kVectors == kTileVectors ? kTileRows : kWideRows;
  const int64_t panel_bytes = packed_panel_bytes(p.dtype, p.num_inputs);
  const int64_t num_tiles = ceil_divide(end_row - first_row, kTallest);
  for (int64_t panel = begin; panel < end; ++panel) {
    for (int64_t part = 0; part < kPanel; part += kVectors * kLanes) {
      const int64_t output = panel * kPanel + part;
      if (output >= p.num_outputs) break;
      const char* weights =
          static_cast<const char*>(p.packed_weight) + panel * panel_bytes + part * 4;
      int64_t tile = 0;
      for_each_tile<kTallest>(first_row, end_row, [&](int64_t row, auto rows) {
        WeightsAhead ahead = {weights + kAhead, kStep};
        if (kCache == 2 && num_tiles > 1 && (panel > begin || tile > 0) && panel + 1 < end) {
          ahead = {weights + panel_bytes + tile * panel_bytes / num_tiles,
                   ceil_divide(kStep, num_tiles)};
        }
        multiply_tile<Steps, rows.value, kCache, kVectors>(p, row, output, weights, ahead);
        ++tile;
      });
    }
  }
}

template <class Steps>
void multiply(const Linear& p, int64_t first_row, int64_t end_row, int64_t begin, int64_t end) {
  constexpr int64_t kFewRows = 8;  // that wait for memory all the time
  if (asks_second_cache() && end_row - first_row > kFewRows) {
    multiply_panels<Steps, 2>(p, first_row, end_row, begin, end);
  } else if (end_row - first_row <= kWideRows) {
    multiply_panels<Steps, 1, kWideVectors>(p, first_row, end_row, begin, end);
  } else {
    multiply_panels<Steps, 1>(p, first_row, end_row, begin, end);
  }
}

#if !VLLM_LITE_HAS_PAIR_PRODUCTS && !VLLM_LITE_HAS_TILES
// A block of a product whose rows and weights are widened once for all tiles that share them. Sums
// are added up in the same order as those of one tile.
struct WideBlock {
  static constexpr int64_t kRows = 192;
  static constexpr int64_t kInputs = 128;
  static constexpr int64_t kPanels = 6;
  // Rows of a tile: more than where weights are widened on the way.
  static constexpr int kTallest = max_of(6, kTileRows);

  void take_rows(const BFloat16* from, int64_t stride, int64_t num_rows, int64_t size) {
    for (int64_t r = 0; r < num_rows; ++r) {
      for_each_vector(size, [&](int64_t i, int64_t count) {
        store(x + r * kInputs + i, load_upto(from + r * stride + i, count));
      });
    }
  }
  void take_weights(const char* panel, int64_t ahead, int64_t size) {
    for (int64_t pair = 0; pair < ceil_divide(size, 2); ++pair) {
      for (int64_t i = 0; i < kPanel; i += kLanes, panel += sizeof(BitsVec)) {
        BitsVec pairs;
        memcpy(&pairs, panel, sizeof pairs);
        __builtin_prefetch(panel + ahead);
        store(weights + 2 * pair * kPanel + i, bit_cast<Vec>(pairs << 16));
        store(weights + (2 * pair + 1) * kPanel + i, bit_cast<Vec>(pairs & 0xffff0000u));
      }
    }
  }
  // Adds the products of `size` inputs to sums of kTileOutputs of a panel's outputs.
  template <int kTile>
  void add_tile(int64_t row, int64_t part, int64_t size, float* of_panel) const {
    const float* value = x + row * kInputs;
    const float* weight = weights + part;
    float* to = of_panel + row * kPanel + part;
    Vec total[kTile][kTileVectors];
#pragma GCC unroll 16
    for (int r = 0; r < kTile; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < kTileVectors; ++v) total[r][v] = load(to + r * kPanel + v * kLanes);
    }
#pragma GCC unroll 4
    for (int64_t i = 0; i < size; ++i, weight += kPanel) {
      Vec w[kTileVectors];
#pragma GCC unroll 4
      for (int v = 0; v < kTileVectors; ++v) w[v] = load(weight + v * kLanes);
#pragma GCC unroll 16
      for (int r = 0; r < kTile; ++r) {
#pragma GCC unroll 4
        for (int v = 0; v < kTileVectors; ++v) add_product(total[r][v], w[v], value[r * kInputs + i]);
      }
    }
#pragma GCC unroll 16
    for (int r = 0; r < kTile; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < kTileVectors; ++v) store(to + r * kPanel + v * kLanes, total[r][v]);
    }
  }

  alignas(64) float x[kRows * kInputs];
  alignas(64) float weights[kInputs * kPanel];
  alignas(64) float sums[kPanels][kRows * kPanel];
};

// The product of up to WideBlock::kRows rows and kPanels panels.
void multiply_block(const Linear& p, int64_t row, int64_t num_rows, int64_t begin, int64_t end,
                    WideBlock& block) {
  const int64_t panel_bytes = packed_panel_bytes(p.dtype, p.num_inputs);
  memset(block.sums, 0, (end - begin) * sizeof *block.sums);
  for (int64_t first = 0; first < p.num_inputs; first += WideBlock::kInputs) {
    const int64_t size = min_of(WideBlock::kInputs, p.num_inputs - first);
    const BFloat16* x = static_cast<const BFloat16*>(p.x) + row * p.x_stride + first;
    block.take_rows(x, p.x_stride, num_rows, size);
    const char* weights = static_cast<const char*>(p.packed_weight) + first / 2 * kPanel * 4;
    for (int64_t panel = begin; panel < end; ++panel) {
      block.take_weights(weights + panel * panel_bytes, panel_bytes, size);
      for (int64_t part = 0; part < kPanel; part += kTileOutputs) {
        for_each_tile<WideBlock::kTallest>(0, num_rows, [&](int64_t at, auto rows) {
          block.add_tile<rows.value>(at, part, size, block.sums[panel - begin]);
        });
      }
    }
  }
  for (int64_t panel = begin; panel < end; ++panel) {
    const int64_t output = panel * kPanel;
    store_rows(p, row, output, num_rows, min_of(kPanel, p.num_outputs - output),
               block.sums[panel - begin]);
  }
}

void multiply_widened(const Linear& p, int64_t row, int64_t end_row, int64_t begin, int64_t end) {
  WideBlock block;
  for (int64_t blocks = ceil_divide(end_row - row, WideBlock::kRows); blocks > 0; --blocks) {
    const int64_t num_rows = ceil_divide(end_row - row, blocks);
    for (int64_t panel = begin; panel < end; panel += WideBlock::kPanels) {
      multiply_block(p, row, num_rows, panel, min_of(panel + WideBlock::kPanels, end), block);
    }
    row += num_rows;
  }
}
#endif

// A word of a panel is a float32 or a bfloat16 pair; without signs, bits are ordered as magnitudes.
static inline BitsVec magnitudes(const float*, BitsVec words) { return words & 0x7fffffffu; }
static inline BitsVec magnitudes(const BFloat16*, BitsVec words) {
  const BitsVec high = words & 0x7fff0000u, low = words << 16 & 0x7fff0000u;
  return high > low ? high : low;
}

template <class T>
uint32_t pack_panel(const PackLinear& p, int64_t panel) {
  constexpr int64_t kInputs = 4 / sizeof(T);
  const T* const type = nullptr;
  const int64_t first = panel * kPanel;
  const int64_t begin = max_of(first, p.first_output);
  const int64_t num_rows = min_of(first + kPanel, p.first_output + p.num_outputs) - begin;
  const int64_t stride = p.weight_stride * sizeof(T), row_bytes = p.num_inputs * sizeof(T);
  const char* rows = static_cast<const char*>(p.weight) + (begin - p.first_output) * stride;
  char* to = static_cast<char*>(p.packed_weight) +
             panel * packed_panel_bytes(p.dtype, p.num_inputs) + (begin - first) * 4;
  BitsVec largest{};
  const auto look_at = [&](BitsVec words) {
    const BitsVec found = magnitudes(type, words);
    largest = found > largest ? found : largest;
  };
  int64_t word = 0;
  for (; num_rows == kPanel && word + 4 <= p.num_inputs / kInputs; word += 4) {
    for (int64_t r = 0; r < kPanel; r += kLanes) {
      FoursOfRows fours;
      for (int i = 0; i < kLanes / 4; ++i) fours.fours[i] = rows + (r + 4 * i) * stride;
      fours.stride = stride;
      BitsVec words[4];
      load_words(fours, 4 * word, words);
      for (int i = 0; i < 4; ++i) {
        look_at(words[i]);
        store_words(to + ((word + i) * kPanel + r) * 4, words[i]);
      }
    }
  }
  for (; word * 4 < row_bytes; ++word) {
    for (int64_t r = 0; r < num_rows; ++r) {
      uint32_t bits = 0;
      memcpy(&bits, rows + r * stride + word * 4, min_of<int64_t>(4, row_bytes - word * 4));
      look_at(BitsVec{} + bits);
      memcpy(to + (word * kPanel + r) * 4, &bits, 4);
    }
  }
  uint32_t found = 0;
  for (int i = 0; i < kLanes; ++i) found = max_of(found, largest[i]);
  return found;
}

}  // namespace

uint32_t pack_linear(const PackLinear& p, int64_t begin_panel, int64_t end_panel) {
  uint32_t largest = 0;
  for (int64_t panel = begin_panel; panel < end_panel; ++panel) {
    with_type(p.dtype, [&](auto number) {
      largest = max_of(largest, pack_panel<decltype(number)>(p, panel));
    });
  }
  return largest;
}

void linear(const Linear& p, int64_t first_row, int64_t end_row, int64_t begin_panel,
            int64_t end_panel) {
  if (p.dtype == DType::kBFloat16) {
#if VLLM_LITE_HAS_TILES
    linear_on_tiles(p, first_row, end_row, begin_panel, end_panel);
#else
#if !VLLM_LITE_HAS_PAIR_PRODUCTS
    if (end_row - first_row > kTileRows) {
      return multiply_widened(p, first_row, end_row, begin_panel, end_panel);
    }
#endif
    multiply<BFloat16Steps>(p, first_row, end_row, begin_panel, end_panel);
#endif
  } else {
    multiply<Float32Steps>(p, first_row, end_row, begin_panel, end_panel);
  }
}

}  // namespace vllm_lite::VLLM_LITE_ISA
