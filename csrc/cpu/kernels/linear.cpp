// Matrix products with packed weights: out [T, M] = x [T, N] * weight [M, N] transposed.
//
// Weights lie in panels of kPanel outputs. A panel holds its inputs in order, float32 one by one
// and bfloat16 in pairs: for each input (pair) the values of all kPanel outputs side by side. So
// a GEMM reads its weights once, from front to back, for any number of rows.
//
// One accumulator sums one output over all inputs in order: a row's result depends neither on
// the other rows nor on how the work is divided. (On tiles the order is another: amx/linear.cpp.)
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
#if defined(__AVX512BF16__)
  static constexpr int64_t kPiece = 0;
  static uint32_t load_x(const BFloat16* x) { return load_pair(x); }
  static uint32_t load_last(const BFloat16* x) { return VLLM_LITE_ISA::load_last(x); }
#else
  static constexpr int64_t kPiece = 256;  // inputs that are widened together
  static WidePair load_x(const float* x) { return {x[0], x[1]}; }
  static WidePair load_last(const float* x) { return {x[0], 0.0f}; }
#endif
};

// kRows rows by kTileOutputs outputs, over all inputs.
template <class Steps, int kRows>
void multiply_tile(const Linear& p, int64_t row, int64_t output, const void* weights) {
  using Element = typename Steps::Element;
  const Element* x = static_cast<const Element*>(p.x) + row * p.x_stride;
  const char* panel = static_cast<const char*>(weights);
  Vec sums[kRows][kTileVectors] = {};

  const auto step = [&](auto load, const auto* from, int64_t stride) {
    // One by one: as an array they would go through memory.
    typename Steps::Weights w[kTileVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kTileVectors; ++v) memcpy(&w[v], panel + v * sizeof w[v], sizeof w[v]);
    // Well ahead, and every line: the hardware prefetcher stops at page ends.
#pragma GCC unroll 2
    for (size_t line = 0; line < sizeof w; line += 64) __builtin_prefetch(panel + 8192 + line);
    panel += kPanel * 4;
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const auto value = load(from + r * stride);
#pragma GCC unroll 4
      for (int v = 0; v < kTileVectors; ++v) add_product(sums[r][v], w[v], value);
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
  float tile[kRows * kTileOutputs];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kTileVectors; ++v) store(tile + r * kTileOutputs + v * kLanes, sums[r][v]);
  }
  const int64_t num_outputs = min_of<int64_t>(kTileOutputs, p.num_outputs - output);
  store_rows<kTileOutputs>(p, row, output, kRows, num_outputs, tile);
}

template <class Steps, int kRows = kTileRows>
void multiply_rows(const Linear& p, int64_t row, int64_t count, int64_t output, const void* w) {
  if constexpr (kRows == 1) {
    multiply_tile<Steps, 1>(p, row, output, w);
  } else if (count >= kRows) {
    multiply_tile<Steps, kRows>(p, row, output, w);
  } else {
    multiply_rows<Steps, kRows - 1>(p, row, count, output, w);
  }
}

template <class Steps>
void multiply_panels(const Linear& p, int64_t first_row, int64_t end_row, int64_t begin,
                     int64_t end) {
  const int64_t panel_bytes = packed_panel_bytes(p.dtype, p.num_inputs);
  // Tiles of nearly equal height: a last tile of one row would be as slow as a full one.
  const int64_t num_tiles = ceil_divide(end_row - first_row, kTileRows);
  for (int64_t panel = begin; panel < end; ++panel) {
    for (int64_t part = 0; part < kPanel; part += kTileOutputs) {
      const int64_t output = panel * kPanel + part;
      if (output >= p.num_outputs) break;
      const char* weights =
          static_cast<const char*>(p.packed_weight) + panel * panel_bytes + part * 4;
      int64_t row = first_row;
      for (int64_t tiles = num_tiles; tiles > 0; --tiles) {
        const int64_t count = ceil_divide(end_row - row, tiles);
        multiply_rows<Steps>(p, row, count, output, weights);
        row += count;
      }
    }
  }
}

template <class T>
void pack_panel(const PackLinear& p, int64_t panel) {
  constexpr int64_t kInputs = 4 / sizeof(T);
  T* to = reinterpret_cast<T*>(static_cast<char*>(p.packed_weight) +
                               panel * packed_panel_bytes(p.dtype, p.num_inputs));
  const int64_t num_rows = min_of<int64_t>(kPanel, p.num_outputs - panel * kPanel);
  const T* rows = static_cast<const T*>(p.weight) + panel * kPanel * p.weight_stride;
  for (int64_t input = 0; input < p.num_inputs; input += kInputs) {
    for (int64_t r = 0; r < kPanel; ++r) {
      for (int64_t i = 0; i < kInputs; ++i) {
        const bool exists = r < num_rows && input + i < p.num_inputs;
        *to++ = exists ? rows[r * p.weight_stride + input + i] : T{};
      }
    }
  }
}

}  // namespace

void pack_linear(const PackLinear& p, int64_t begin_panel, int64_t end_panel) {
  for (int64_t panel = begin_panel; panel < end_panel; ++panel) {
    with_type(p.dtype, [&](auto number) { pack_panel<decltype(number)>(p, panel); });
  }
}

void linear(const Linear& p, int64_t first_row, int64_t end_row, int64_t begin_panel,
            int64_t end_panel) {
  if (p.dtype == DType::kBFloat16) {
#if VLLM_LITE_HAS_TILES
    linear_on_tiles(p, first_row, end_row, begin_panel, end_panel);
#else
    multiply_panels<BFloat16Steps>(p, first_row, end_row, begin_panel, end_panel);
#endif
  } else {
    multiply_panels<Float32Steps>(p, first_row, end_row, begin_panel, end_panel);
  }
}

}  // namespace vllm_lite::VLLM_LITE_ISA
