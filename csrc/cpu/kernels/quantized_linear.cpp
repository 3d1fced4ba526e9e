// Products of rounded activations and packed quantised weights, and rows of such weights.
//
// A chunk of a panel is unpacked once for all rows of x. Codes of a part are multiplied and added
// up as integers, exactly; then sum += x's scale * (scale * products + minimum * sum of x's codes),
// part by part in order. So a row's result depends neither on the other rows nor on how the work
// is divided, and one row is multiplied as many are.
#include "cpu/kernels/amx/quantized_products.h"
#include "cpu/kernels/kernels.h"
#include "cpu/kernels/quantized_unpack.h"
#include "cpu/kernels/store_rows.h"

namespace vllm_lite::VLLM_LITE_ISA {
namespace {

#if defined(__AVX512F__)
constexpr int kTileRows = 12;
#else
constexpr int kTileRows = 4;
#endif

// ---- activations

template <class T>
void quantize_group(const T* x, QuantizedGroup* to) {
  constexpr int kVectors = static_cast<int>(kQuantizedGroup) / kLanes;
  // A group below this would need a reciprocal that overflows.
  constexpr float kTiny = 0x1p-100f;
  constexpr float kRounder = 12582912.0f;  // adding 1.5 * 2^23 rounds to an integer
  Vec values[kVectors], largest = {};
  Vec invalid = {};
  for (int i = 0; i < kVectors; ++i) {
    values[i] = load(x + i * kLanes);
    largest = max_lanes(largest, max_lanes(values[i], -values[i]));
    invalid += values[i] * 0.0f;  // NaN unless the value is finite
  }
  const float magnitude = reduce_max(largest);
  const bool is_valid = reduce_add(invalid) == 0.0f;
  const bool is_zero = magnitude < kTiny;
  const float factor = is_zero || !is_valid ? 0.0f : 127.0f / magnitude;
  to->scale = !is_valid ? bit_cast<float>(0x7fc00000) : is_zero ? 0.0f : magnitude / 127.0f;
  typedef int8_t Bytes __attribute__((vector_size(kLanes)));
  Vec sums[2] = {};
  for (int i = 0; i < kVectors; ++i) {
    const Vec rounded = is_valid ? values[i] * factor + kRounder : broadcast(kRounder);
    const IntVec codes = bit_cast<IntVec>(rounded) - bit_cast<int32_t>(kRounder);
    const Bytes bytes = __builtin_convertvector(codes, Bytes);
    memcpy(to->codes + i * kLanes, &bytes, sizeof bytes);
    sums[2 * i / kVectors] += rounded - kRounder;
  }
  to->half_sums[0] = reduce_add(sums[0]);
  to->half_sums[1] = reduce_add(sums[1]);
  to->sum = to->half_sums[0] + to->half_sums[1];
}

template <class T>
void quantize_range(const QuantizeRows& p, int64_t begin_row, int64_t end_row) {
  for (int64_t row = begin_row; row < end_row; ++row) {
    const T* x = static_cast<const T*>(p.x) + row * p.x_stride;
    QuantizedGroup* to = p.groups + row;
    for (int64_t i = 0; i < p.num_inputs; i += kQuantizedGroup, to += p.num_rows) {
      quantize_group(x + i, to);
    }
  }
}

// ---- products

// Adds products of four neighbouring codes and bytes of x to each lane. kIsWide: codes need all
// eight bits, so that pairs of products may exceed 16.
template <bool kIsWide>
inline IntVec add_dots(IntVec sums, CodeVec codes, const int8_t* x) {
  int32_t four;
  memcpy(&four, x, sizeof four);
#if defined(__AVX512VNNI__)
  return bit_cast<IntVec>(_mm512_dpbusd_epi32(bit_cast<__m512i>(sums), bit_cast<__m512i>(codes),
                                              _mm512_set1_epi32(four)));
#elif defined(__AVX2__)
  typedef int16_t Pairs __attribute__((vector_size(kLanes * 4)));
  typedef uint16_t UnsignedPairs __attribute__((vector_size(kLanes * 4)));
  const Pairs bytes = bit_cast<Pairs>(IntVec{} + four);
#if defined(__AVX512BW__)
  const auto add_pairs = [](Pairs a, Pairs b) {
    return bit_cast<IntVec>(_mm512_madd_epi16(bit_cast<__m512i>(a), bit_cast<__m512i>(b)));
  };
  const auto multiply = [](CodeVec a, Pairs b) {
    return bit_cast<Pairs>(_mm512_maddubs_epi16(bit_cast<__m512i>(a), bit_cast<__m512i>(b)));
  };
#else
  const auto add_pairs = [](Pairs a, Pairs b) {
    return bit_cast<IntVec>(_mm256_madd_epi16(bit_cast<__m256i>(a), bit_cast<__m256i>(b)));
  };
  const auto multiply = [](CodeVec a, Pairs b) {
    return bit_cast<Pairs>(_mm256_maddubs_epi16(bit_cast<__m256i>(a), bit_cast<__m256i>(b)));
  };
#endif
  if constexpr (kIsWide) {
    const Pairs even = bit_cast<Pairs>(codes) & 0xff;
    const Pairs odd = bit_cast<Pairs>(bit_cast<UnsignedPairs>(codes) >> 8);
    return sums + add_pairs(even, bytes << 8 >> 8) + add_pairs(odd, bytes >> 8);
  } else {
    return sums + add_pairs(multiply(codes, bytes), Pairs{} + 1);
  }
#else
  const BitsVec bits = bit_cast<BitsVec>(codes);
  for (int i = 0; i < 4; ++i) {
    sums += bit_cast<IntVec>(bits >> 8 * i & 0xff) * static_cast<int32_t>(x[i]);
  }
  return sums;
#endif
}

// Integer products of a part of a group, computed here.
template <int kParts, bool kIsWide>
struct DotProducts {
  static constexpr int kNumParts = kParts;

  template <int kRows>
  __attribute__((always_inline)) void operator()(const Chunk& chunk, int g, int part, int v,
                                                 const QuantizedGroup* x,
                                                 IntVec (&products)[kRows]) const {
    constexpr int kLines = kGroupLines / kParts;
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) products[r] = IntVec{};
#pragma GCC unroll 8
    for (int i = part * kLines; i < (part + 1) * kLines; ++i) {
      const CodeVec line = chunk.codes[g * kGroupLines + i][v];
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        products[r] = add_dots<kIsWide>(products[r], line, x[r].codes + 4 * i);
      }
    }
  }
  DotProducts from_row(int64_t) const { return *this; }
};

#if VLLM_LITE_HAS_TILES
// Those that tiles have left in memory.
template <int kParts>
struct StoredProducts {
  static constexpr int kNumParts = kParts;
  const TileProducts& stored;
  int64_t first_row = 0;

  template <int kRows>
  __attribute__((always_inline)) void operator()(const Chunk&, int g, int part, int v,
                                                 const QuantizedGroup*,
                                                 IntVec (&products)[kRows]) const {
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      memcpy(&products[r], stored.sums[2 * g + part][first_row + r] + v * kLanes,
             sizeof products[r]);
    }
  }
  StoredProducts from_row(int64_t row) const { return {stored, row}; }
};
#endif

// kRows rows from `x` on by one vector of outputs of a chunk. `sums` has a row of kPanel for each
// row of x; groups of x are x_stride apart.
template <int kRows, class Products>
void multiply_tile(const Chunk& chunk, int num_groups, int v, const QuantizedGroup* x,
                   int64_t x_stride, const Products& products_of, float* sums) {
  constexpr int kParts = Products::kNumParts;
  Vec totals[kRows];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) totals[r] = load(sums + r * kPanel + v * kLanes);
  for (int g = 0; g < num_groups; ++g, x += x_stride) {
    Vec group_sums[kRows];
#pragma GCC unroll 2
    for (int part = 0; part < kParts; ++part) {
      IntVec products[kRows];
      products_of(chunk, g, part, v, x, products);
      const Vec scale = chunk.scales[2 * g + part][v], minimum = chunk.minima[2 * g + part][v];
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        const Vec sum = broadcast(kParts == 1 ? x[r].sum : x[r].half_sums[part]);
        const Vec start = part == 0 ? minimum * sum : multiply_add(minimum, sum, group_sums[r]);
        group_sums[r] = multiply_add(scale, to_floats(products[r]), start);
      }
    }
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      totals[r] = multiply_add(group_sums[r], broadcast(x[r].scale), totals[r]);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) store(sums + r * kPanel + v * kLanes, totals[r]);
}

template <int kRows = kTileRows, class Products>
void multiply_rows(int64_t count, const Chunk& chunk, int num_groups, int v,
                   const QuantizedGroup* x, int64_t x_stride, const Products& products,
                   float* sums) {
  if constexpr (kRows == 1) {
    multiply_tile<1>(chunk, num_groups, v, x, x_stride, products, sums);
  } else if (count >= kRows) {
    multiply_tile<kRows>(chunk, num_groups, v, x, x_stride, products, sums);
  } else {
    multiply_rows<kRows - 1>(count, chunk, num_groups, v, x, x_stride, products, sums);
  }
}

// `count` rows from `x` on. In tiles of nearly equal height: a last tile of one row would be as
// slow as a full one.
template <class Products>
void multiply_chunk(const Chunk& chunk, int num_groups, int num_vectors, const QuantizedGroup* x,
                    int64_t x_stride, int64_t count, const Products& products, float* sums) {
  int64_t row = 0;
  for (int64_t tiles = ceil_divide(count, kTileRows); tiles > 0; --tiles) {
    const int64_t height = ceil_divide(count - row, tiles);
    for (int v = 0; v < num_vectors; ++v) {
      multiply_rows(height, chunk, num_groups, v, x + row, x_stride, products.from_row(row),
                    sums + row * kPanel);
    }
    row += height;
  }
}

#if VLLM_LITE_HAS_TILES
template <int kParts>
void multiply_chunk_on_tiles(const QuantizedTiles<kParts>& tiles, const Chunk& chunk,
                             int num_groups, int num_vectors, const QuantizedGroup* x,
                             int64_t num_rows, float* sums) {
  TileProducts products;
  int64_t row = 0;
  for (int64_t blocks = tiles.num_blocks(); blocks > 0; --blocks) {
    const int64_t count = ceil_divide(num_rows - row, blocks);
    tiles.multiply(chunk, num_groups, num_vectors * kLanes > kHalfPanel, x + row, num_rows, count,
                   products);
    multiply_chunk(chunk, num_groups, num_vectors, x + row, num_rows, count,
                   StoredProducts<kParts>{products}, sums + row * kPanel);
    row += count;
  }
}
#endif

template <class Block>
void multiply_panel(const QuantizedProduct& p, const QuantizedPart& part, int64_t panel,
                    [[maybe_unused]] const QuantizedTiles<Packed<Block>::kParts>& tiles) {
  using Layout = Packed<Block>;
  constexpr bool kIsWide = Block::kOffset == 128;
  const int64_t num_outputs = min_of<int64_t>(kPanel, part.num_outputs - panel * kPanel);
  const int num_vectors = static_cast<int>(ceil_divide(num_outputs, kLanes));
  const int64_t num_groups = p.num_inputs / kQuantizedGroup;
  alignas(64) float sums[kQuantizedRows * kPanel];
  memset(sums, 0, p.num_rows * kPanel * sizeof(float));
  Chunk chunk;
  const uint8_t* from = part.packed + panel * Layout::panel_bytes(p.num_inputs);
  for (int64_t g = 0; g < num_groups; g += kChunkGroups, from += Layout::kChunkBytes) {
    const int count = static_cast<int>(min_of<int64_t>(kChunkGroups, num_groups - g));
    unpack_chunk<Block>(from, count, 0, num_vectors, chunk);
    const QuantizedGroup* x = p.x + g * p.num_rows;
#if VLLM_LITE_HAS_TILES
    if (tiles.is_used()) {
      multiply_chunk_on_tiles(tiles, chunk, count, num_vectors, x, p.num_rows, sums);
      continue;
    }
#endif
    multiply_chunk(chunk, count, num_vectors, x, p.num_rows, p.num_rows,
                   DotProducts<Layout::kParts, kIsWide>{}, sums);
  }
  store_rows(p, 0, part.first_output + panel * kPanel, p.num_rows, num_outputs, sums);
}

// ---- rows

// In double: one rounding, so that a row is exactly what the format says.
template <class Block, class Out>
void look_up_row(const QuantizedLookup& p, int64_t i) {
  using Layout = Packed<Block>;
  const int lane = static_cast<int>(p.ids[i] % kPanel);
  const int v = lane / kLanes;
  Out* out = static_cast<Out*>(p.out) + i * p.out_stride;
  const int64_t num_groups = p.num_inputs / kQuantizedGroup;
  const uint8_t* from = p.weight.packed + p.ids[i] / kPanel * Layout::panel_bytes(p.num_inputs);
  Chunk chunk;
  for (int64_t g = 0; g < num_groups; g += kChunkGroups, from += Layout::kChunkBytes) {
    const int count = static_cast<int>(min_of<int64_t>(kChunkGroups, num_groups - g));
    unpack_chunk<Block>(from, count, v, v + 1, chunk);
    for (int k = 0; k < count * kQuantizedGroup; ++k, ++out) {
      const int at = k / kQuantizedGroup * 2 + k % kQuantizedGroup / Block::kPartSize;
      const double scale = chunk.scales[at][v][lane % kLanes];
      const double minimum = chunk.minima[at][v][lane % kLanes];
      from_float(out, static_cast<float>(
                          scale * chunk.codes[k / 4][v][lane % kLanes * 4 + k % 4] + minimum));
    }
  }
}

}  // namespace

void quantize_rows(const QuantizeRows& p, int64_t begin_row, int64_t end_row) {
  if (p.dtype == DType::kBFloat16) {
    quantize_range<BFloat16>(p, begin_row, end_row);
  } else {
    quantize_range<float>(p, begin_row, end_row);
  }
}

void quantized_product(const QuantizedProduct& p, int64_t begin_panel, int64_t end_panel) {
  for (int64_t i = 0; i < p.num_parts; ++i) {
    const QuantizedPart& part = p.parts[i];
    const int64_t num_panels = ceil_divide(part.num_outputs, kPanel);
    const int64_t begin = max_of<int64_t>(begin_panel, 0), end = min_of(end_panel, num_panels);
    if (begin < end) {
      with_block(static_cast<int>(part.ggml_type), [&](auto block) {
        using Block = decltype(block);
        const QuantizedTiles<Packed<Block>::kParts> tiles(p.num_rows);
        for (int64_t k = begin; k < end; ++k) multiply_panel<Block>(p, part, k, tiles);
      });
    }
    begin_panel -= num_panels;
    end_panel -= num_panels;
  }
}

void quantized_lookup(const QuantizedLookup& p, int64_t begin, int64_t end) {
  with_block(static_cast<int>(p.weight.ggml_type), [&](auto block) {
    for (int64_t i = begin; i < end; ++i) {
      if (p.out_dtype == DType::kBFloat16) {
        look_up_row<decltype(block), BFloat16>(p, i);
      } else {
        look_up_row<decltype(block), float>(p, i);
      }
    }
  });
}

}  // namespace vllm_lite::VLLM_LITE_ISA
