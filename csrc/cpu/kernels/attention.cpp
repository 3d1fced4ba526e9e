// Flash attention (arXiv:2205.14135) of a tile of query rows over a paged context.
//
// Keys are taken 64 at a time and transposed, so that a vector holds one dimension of many keys:
// scores then need no sums across lanes, and each is added up in the same order whatever the
// number of rows. Rows go through registers in groups of up to kMaxRows.
#include "cpu/kernels/amx/attention_products.h"
#include "cpu/kernels/attention_softmax.h"
#include "cpu/kernels/store_rows.h"

namespace vllm_lite::VLLM_LITE_ISA {
namespace {

constexpr int kMaxRows = 6;
// From so many rows on, those of prompts, arithmetic bounds the time. 24 sums of AVX-512 stored at
// once hold up a Zen 4 for 45 cycles, 12 for 5.
constexpr int kTallRows = 5;
// More rows than kMaxRows: the query heads of a single token, which use keys and values as they are
// stored.
constexpr int kMaxStoredRows = 8;
// Vectors of keys or values that R rows take at once: R * kVectors<R> sums stay in registers, and
// are enough to hide a multiplication's latency.
#if defined(__AVX512F__)
template <int R>
constexpr int kVectors = R < kTallRows ? 4 : 2;
#elif defined(__aarch64__)
template <int R>
constexpr int kVectors = 4;
#elif defined(__AVX2__)
template <int R>
constexpr int kVectors = R == 1 ? 8 : R < 4 ? 4 : R <= kMaxRows ? 2 : 1;
#else
template <int R>
constexpr int kVectors = 2;
#endif

// ---- arithmetic

template <class Dot, int R, int V>
inline void score_keys(const typename Dot::Element* query, int64_t row_size,
                       const typename Dot::Element* keys, int64_t steps, RowsAhead& next,
                       float* scores) {
  RowsAhead ahead = next;
  Vec sums[R][V];
  for (int r = 0; r < R; ++r) {
    for (int v = 0; v < V; ++v) sums[r][v] = Vec{};
  }
  for (int64_t step = 0; step < steps; ++step) {
    Vec element[R];
    for (int r = 0; r < R; ++r) element[r] = Dot::spread(query[r * row_size + step]);
    for (int v = 0; v < V; ++v) {
      Vec key;
      memcpy(&key, keys + step * kKeys + v * kLanes, sizeof key);
      for (int r = 0; r < R; ++r) sums[r][v] = Dot::step(sums[r][v], element[r], key);
    }
    ahead.ask(1);
  }
  for (int r = 0; r < R; ++r) {
    for (int v = 0; v < V; ++v) store(scores + r * kKeys + v * kLanes, sums[r][v]);
  }
  next = ahead;
}

// As score_keys, for many rows: nothing else in the loop, and not inlined, so that what it needs
// stays in registers.
template <class Dot, int R, int V>
[[gnu::noinline]] void score_tall(const typename Dot::Element* query, int64_t row_size,
                                  const typename Dot::Element* keys, int64_t steps,
                                  float* scores) {
  Vec sums[R][V] = {};
  for (int64_t step = 0; step < steps; ++step, ++query, keys += kKeys) {
    Vec key[V];
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) memcpy(&key[v], keys + v * kLanes, sizeof(Vec));
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const Vec element = Dot::spread(query[r * row_size]);
#pragma GCC unroll 4
      for (int v = 0; v < V; ++v) sums[r][v] = Dot::step(sums[r][v], element, key[v]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) store(scores + r * kKeys + v * kLanes, sums[r][v]);
  }
}

template <class Dot, int R>
inline void score_rows(const typename Dot::Element* query, int64_t row_size,
                       const typename Dot::Element* keys, int64_t num_keys, int64_t steps,
                       RowsAhead& ahead, float* scores) {
  for (int64_t key = 0; key < num_keys; key += kVectors<R> * kLanes) {
    const int64_t vectors = min_of<int64_t>(kVectors<R>, ceil_divide(num_keys - key, kLanes));
    with_constant<kVectors<R>>(vectors, [&](auto v) {
      constexpr int V = decltype(v)::value;
      if constexpr (R < kTallRows) {
        score_keys<Dot, R, V>(query, row_size, keys + key, steps, ahead, scores + key);
      } else {
        score_tall<Dot, R, V>(query, row_size, keys + key, steps, scores + key);
      }
    });
  }
  if constexpr (R >= kTallRows) ahead.ask(steps);
}

// Whether vectors may be of keys as they are stored: in bfloat16, by AVX2, or as pairs by AVX-512.
// Others take longer than packing them, or were not measured.
template <class Dot, class Cache>
constexpr bool kUsesStored = sizeof(Cache) == 2 && !Dot::kIsOnTiles &&
                             (kLanes == 8 || (kLanes == 16 && Dot::kKeysPerStep == 2));

// Whether a tile's rows use keys as they are stored: few rows, as a single token's heads are, where
// blocks of the cache hold whole groups of keys. An encoder's rows may end anywhere.
template <class Dot, class Cache>
bool uses_stored_keys(const Attention& p, int64_t num_rows) {
  if (p.num_ahead != 0) return false;
  if constexpr (Dot::kIsOnTiles) {
    return sizeof(Cache) == 2 && num_rows <= Dot::kMaxStoredRows &&
           p.block_size % Dot::kMaxStoredRows == 0 && p.keys.size % (2 * kLanes) == 0;
  }
  return kUsesStored<Dot, Cache> && num_rows <= kMaxStoredRows && p.block_size % 4 == 0 &&
         p.keys.size * sizeof(Cache) % 16 == 0;
}

// The same of keys in the cache, which are transposed on their way into registers: packing them
// first takes few rows longer, and reading them is spread more evenly.
template <class Dot, int R, class Cache>
inline void score_stored(const typename Dot::Element* query, int64_t row_size,
                         const Cache* const* keys, const CachedRows& cache, int64_t num_keys,
                         RowsAhead& next, float* scores) {
  // Vectors of keys side by side: few sums would wait for each other.
  constexpr int V = kLanes == 8 && R <= 4 ? 2 : 1;
  constexpr int kElements = 2 / Dot::kKeysPerStep;  // of a cache's word
  RowsAhead ahead = next;
  FoursOfRows rows[V];
  for (int64_t first = 0; first < num_keys; first += V * kLanes) {
    for (int v = 0; v < V; ++v) {
      rows[v].stride = cache.row_stride * sizeof(Cache);
      for (int i = 0; i < kLanes; i += 4) {
        // A four may reach beyond the last key, but not beyond its block of the cache.
        const int64_t key = min_of(first + v * kLanes + i, (num_keys - 1) / 4 * 4);
        rows[v].fours[i / 4] = reinterpret_cast<const char*>(keys[key]);
      }
    }
    Vec sums[R][V] = {};
    const typename Dot::Element* elements = query;
    for (int64_t word = 0; word < cache.size / 2; word += 4, elements += 4 * kElements) {
      BitsVec words[V][4];
#pragma GCC unroll 2
      for (int v = 0; v < V; ++v) load_words(rows[v], 4 * word, words[v]);
#pragma GCC unroll 8
      for (int i = 0; i < 4 * kElements; ++i) {
        Vec key[V];
#pragma GCC unroll 2
        for (int v = 0; v < V; ++v) key[v] = Dot::element(words[v][i / kElements], i % kElements);
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
          const Vec element = Dot::spread(elements[r * row_size + i]);
#pragma GCC unroll 2
          for (int v = 0; v < V; ++v) sums[r][v] = Dot::step(sums[r][v], element, key[v]);
        }
      }
      ahead.ask(3 * V);
    }
    for (int r = 0; r < R; ++r) {
      for (int v = 0; v < V; ++v) store(scores + r * kKeys + first + v * kLanes, sums[r][v]);
    }
  }
  next = ahead;
}

template <class Dot, int R, int V, class Value>
inline void add_values(const typename Dot::Element* weights, const float* rescales,
                       const Value* const* values, RowsAhead& next, int64_t num_keys,
                       int64_t offset, float* sums, int64_t row_size) {
  RowsAhead ahead = next;
  Vec sum[R][V];
  for (int r = 0; r < R; ++r) {
    const Vec rescale = broadcast(rescales[r]);
    for (int v = 0; v < V; ++v) {
      sum[r][v] = load(sums + r * row_size + offset + v * kLanes) * rescale;
    }
  }
  for (int64_t step = 0; step < ceil_divide(num_keys, Dot::kKeysPerStep); ++step) {
    Vec weight[R];
    for (int r = 0; r < R; ++r) weight[r] = Dot::spread(weights[r * kKeys + step]);
    constexpr bool kTwo = V % 2 == 0 && requires(Vec value) {
      Dot::load_values(values, step, offset, value, value);
    };
    for (int v = 0; v < V; v += 1 + kTwo) {
      Vec value[1 + kTwo];
      if constexpr (kTwo) {
        Dot::load_values(values, step, offset + v * kLanes, value[0], value[1]);
      } else {
        value[0] = Dot::load_values(values, step, offset + v * kLanes, kLanes);
      }
      for (int i = 0; i < 1 + kTwo; ++i) {
        for (int r = 0; r < R; ++r) sum[r][v + i] = Dot::step(sum[r][v + i], weight[r], value[i]);
      }
    }
    ahead.ask(2);
  }
  for (int r = 0; r < R; ++r) {
    for (int v = 0; v < V; ++v) store(sums + r * row_size + offset + v * kLanes, sum[r][v]);
  }
  next = ahead;
}

// As add_values, for many rows.
template <class Dot, int R, int V, class Value>
[[gnu::noinline]] void add_tall(const typename Dot::Element* weights, const float* rescales,
                                const Value* const* values, int64_t steps, int64_t offset,
                                float* sums, int64_t row_size) {
  Vec sum[R][V];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    const Vec rescale = broadcast(rescales[r]);
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) sum[r][v] = load(sums + r * row_size + v * kLanes) * rescale;
  }
  for (int64_t step = 0; step < steps; ++step, ++weights) {
    Vec value[V];
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) {
      value[v] = Dot::load_values(values, step, offset + v * kLanes, kLanes);
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const Vec weight = Dot::spread(weights[r * kKeys]);
#pragma GCC unroll 4
      for (int v = 0; v < V; ++v) sum[r][v] = Dot::step(sum[r][v], weight, value[v]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) store(sums + r * row_size + v * kLanes, sum[r][v]);
  }
}

// `is_single`: a single token's heads, for which reading bounds the time.
template <class Dot, int R, class Value>
inline void add_value_rows(const float* weights, const float* rescales,
                           const Value* const* values, RowsAhead& ahead, int64_t num_keys,
                           bool is_single, float* sums, int64_t row_size) {
  const auto* elements = reinterpret_cast<const typename Dot::Element*>(weights);
  for (int64_t offset = 0; offset < row_size;) {
    const int64_t vectors = min_of<int64_t>(kVectors<R>, (row_size - offset) / kLanes);
    with_constant<kVectors<R>>(vectors, [&](auto v) {
      constexpr int V = decltype(v)::value;
      if (R < kTallRows || is_single) {
        add_values<Dot, R, V>(elements, rescales, values, ahead, num_keys, offset, sums, row_size);
      } else {
        add_tall<Dot, R, V>(elements, rescales, values, ceil_divide(num_keys, Dot::kKeysPerStep),
                            offset, sums + offset, row_size);
      }
    });
    offset += vectors * kLanes;
  }
  if (R >= kTallRows && !is_single) ahead.ask(num_keys);
}

// ---- tiles

int64_t padded_size(int64_t size) { return round_up(size, kLanes); }

// The position of the first query that does not see a key any more.
inline int64_t end_of_view(const Attention& p, int64_t key) {
  const int64_t window = p.sliding_window;
  if (window <= 0) return INT64_MAX / 2;
  return p.is_chunked ? (key / window + 1) * window : key + window;
}

struct Scratch {
  Scratch(float* memory, int64_t rows, int64_t key_size, int64_t value_size)
      : query(memory),
        keys(query + rows * key_size),
        values(keys + kKeys * key_size),
        scores(values + kKeys * value_size),
        sums(reinterpret_cast<Vec*>(scores + kMostGroupRows * kKeys)),
        gathered(reinterpret_cast<char*>(sums + rows)) {}
  float* query;
  float* keys;
  float* values;
  float* scores;
  Vec* sums;
  char* gathered;
};

int64_t scratch_floats(const Attention& p, int64_t rows) {
  return (rows + kKeys + kLanes) * padded_size(p.keys.size) + kKeys * padded_size(p.values.size) +
         kMostGroupRows * kKeys + rows * kLanes;
}

// The softmax state of a tile's rows: views of `state` and of the scratch memory.
template <class Dot>
struct TileRows {
  typename Dot::Unit& unit;
  const typename Dot::Element* query;
  float* maxima;
  Vec* sums;
  float* values;
  int64_t query_size;  // of a row
  int64_t value_size;
};

// A packed block of keys.
template <class Element, class Value>
struct PackedBlock {
  int64_t position;  // of the first key
  int64_t num_keys;
  const Element* keys;              // null where keys are used as they are stored
  const Value* const* values;
  const RowScales* scales;          // or null
  const Value* const* stored_keys = nullptr;
};

// Finds the keys of a block visible to each of `count` rows from `first` on; false if all are.
template <class Block>
inline bool find_visible(const Attention& p, const AttentionTile& tile, const Block& block,
                         int64_t first, int64_t count, VisibleKeys* visible) {
  const int64_t group = p.num_heads / p.num_kv_heads;
  const int64_t token = first / group;
  int64_t position = tile.first_position + token;
  const int64_t last = tile.first_position + (first + count - 1) / group;
  const int64_t seen_by_first = position + p.num_ahead - block.position + 1;
  if (block.num_keys == kKeys && seen_by_first >= kKeys && last < end_of_view(p, block.position)) {
    return false;
  }
  int64_t head = first - token * group;
  for (int64_t r = 0; r < count; ++r) {
    visible[r] = {max_of<int64_t>(0, first_seen(p, position) - block.position),
                  min_of(block.num_keys, position + p.num_ahead - block.position + 1)};
    if (++head == group) head = 0, ++position;
  }
  return true;
}

// The biases of `count` rows from `first` on, or null.
template <class Block>
inline const DistanceBias* find_biases(const Attention& p, const AttentionTile& tile,
                                       const Block& block, int64_t first, int64_t count,
                                       DistanceBias* biases) {
  if (p.alibi_slopes == nullptr && p.distance_terms == nullptr) return nullptr;
  const int64_t group = p.num_heads / p.num_kv_heads, middle = p.num_distances / 2;
  for (int64_t r = 0; r < count; ++r) {
    const int64_t head = tile.kv_head * group + (first + r) % group;
    const int64_t distance = block.position - tile.first_position - (first + r) / group;
    const float slope = p.alibi_slopes == nullptr ? 0.0f : p.alibi_slopes[head];
    biases[r] = {slope * kLog2E, static_cast<float>(distance), nullptr, middle + 1 - distance};
    if (p.distance_terms != nullptr) {
      biases[r].terms = p.distance_terms + head * p.num_distances + middle + distance;
    }
  }
  return biases;
}

// Up to Dot::kGroupRows rows, from `first` on, over a block. The last one sees the most keys.
// Not inlined: its caller would grow beyond what compilers inline the packing of keys into.
template <class Dot, class Value>
[[gnu::noinline]] void attend_rows(const Attention& p, const AttentionTile& tile,
                                   const TileRows<Dot>& rows, int64_t first, int64_t count,
                                   const PackedBlock<typename Dot::Element, Value>& block,
                                   RowsAhead& ahead, float* scores) {
  VisibleKeys visible[kMostGroupRows];
  const VisibleKeys* seen =
      find_visible(p, tile, block, first, count, visible) ? visible : nullptr;
  DistanceBias bias_of_row[kMostGroupRows];
  const DistanceBias* biases = find_biases(p, tile, block, first, count, bias_of_row);
  alignas(64) float rescales[kMostGroupRows];
  const SoftmaxRows softmax = {count, scores, rows.maxima + first, rows.sums + first, rescales};
  if constexpr (Dot::kIsOnTiles) {
    if (block.keys != nullptr) {
      rows.unit.score(rows.query + first * rows.query_size, count, rows.query_size, block.keys,
                      Dot::steps(p.keys.size), ahead, scores);
    }
    update_softmax<Dot>(p, block.scales, biases, seen, ahead, softmax);
    rows.unit.add_values(scores, rescales, count, block.values[0], rows.value_size, ahead,
                         rows.values + first * rows.value_size);
    return;
  }
  // Types that never come with stored keys need no code for so many rows.
  constexpr int kMost = kUsesStored<Dot, Value> ? kMaxStoredRows : kMaxRows;
  const int64_t most = block.keys == nullptr ? kMost : kMaxRows;
  const int64_t rows_at_once = ceil_divide(count, ceil_divide(count, most));
  // Calls pass(Constant<rows>, first row, keys visible to any of the rows).
  const auto for_each_pass = [&](auto&& pass) {
    for (int64_t row = 0; row < count; row += rows_at_once) {
      const int64_t left = min_of(rows_at_once, count - row);
      const int64_t num_keys = seen != nullptr ? seen[row + left - 1].end : kKeys;
      with_constant<kMost>(left, [&](auto constant) { pass(constant, row, num_keys); });
    }
  };
  for_each_pass([&](auto constant, int64_t row, int64_t num_keys) {
    if constexpr (kUsesStored<Dot, Value>) {
      if (block.keys == nullptr) {
        return score_stored<Dot, decltype(constant)::value>(
            rows.query + (first + row) * rows.query_size, rows.query_size, block.stored_keys,
            p.keys, num_keys, ahead, scores + row * kKeys);
      }
    }
    score_rows<Dot, decltype(constant)::value>(rows.query + (first + row) * rows.query_size,
                                               rows.query_size, block.keys, num_keys,
                                               Dot::steps(p.keys.size), ahead,
                                               scores + row * kKeys);
  });
  update_softmax<Dot>(p, block.scales, biases, seen, ahead, softmax);
  for_each_pass([&](auto constant, int64_t row, int64_t num_keys) {
    add_value_rows<Dot, decltype(constant)::value>(
        scores + row * kKeys, rescales + row, block.values, ahead, num_keys, block.keys == nullptr,
        rows.values + (first + row) * rows.value_size, rows.value_size);
  });
}

// The part of a span visible to any row of the tile, from the start of a block of keys on.
struct Positions {
  Positions(const Attention& p, const AttentionSpan& of) {
    const AttentionTile& tile = *of.tile;
    const int64_t oldest = max_of<int64_t>(0, first_seen(p, tile.first_position));
    begin = max_of(of.span * kSpan, oldest / kKeys * kKeys);
    end = min_of((of.span + 1) * kSpan, tile.end);
  }
  int64_t begin;
  int64_t end;
};

template <class Dot, class Cache>
void attend(const Attention& p, const AttentionSpan& of, const AttentionSpan& after, float* state,
            float* memory) {
  using Element = typename Dot::Element;
  const AttentionTile& tile = *of.tile;
  const int64_t group = p.num_heads / p.num_kv_heads;
  const int64_t num_rows = tile.num_tokens * group;
  const int64_t query_size = padded_size(p.keys.size), value_size = padded_size(p.values.size);
  const Scratch scratch(memory, num_rows, query_size, value_size);
  Element* query = reinterpret_cast<Element*>(scratch.query);
  Element* keys = reinterpret_cast<Element*>(scratch.keys);
  typename Dot::Unit unit;
  const TileRows<Dot> rows = {unit, query, state, scratch.sums, state + 2 * num_rows,
                              query_size, value_size};
  for (int64_t r = 0; r < num_rows; ++r) rows.maxima[r] = -INFINITY, rows.sums[r] = Vec{};
  memset(rows.values, 0, num_rows * value_size * sizeof(float));
  pack_query<Dot>(p, tile, query_size, query);
  const bool is_few = uses_stored_keys<Dot, Cache>(p, num_rows);
  if constexpr (Dot::kIsOnTiles) {
    if (is_few) {
      unit.spread_queries(query, num_rows, query_size, Dot::steps(p.keys.size), keys);
    } else {
      clear_keys_beyond(p.keys.size, keys);
    }
  }

  const Positions seen(p, of), later(p, after);
  // Values are converted once for all rows, unless only one group uses them.
  const bool convert = Dot::kIsOnTiles || value_size != p.values.size || sizeof(Cache) == 1 ||
                       (sizeof(Cache) == 2 && num_rows > (is_few ? kMaxStoredRows : kMaxRows));
  const bool pack = !is_few || (convert && !Dot::kIsOnTiles);
  KeyBlock<Cache> blocks[2];
  const Element* packed_values[kKeys];
  RowScales scales;
  const RowScales* used_scales = p.has_row_scales ? &scales : nullptr;
  locate_keys(p, tile, seen.begin, seen.end, blocks[seen.begin / kKeys % 2]);
  for (int64_t key = seen.begin; key < seen.end; key += kKeys) {
    const KeyBlock<Cache>& block = blocks[key / kKeys % 2];
    KeyBlock<Cache>& next = blocks[(key / kKeys + 1) % 2];
    if (key + kKeys < seen.end) {
      locate_keys(p, tile, key + kKeys, seen.end, next);
    } else {
      locate_keys(p, *after.tile, later.begin, later.end, next);
    }
    RowsAhead ahead(p, next);
    if (p.has_row_scales) load_scales(p, block, scales);
    if (pack) pack_keys(p.keys, block, ahead, scratch.gathered, keys);
    if (convert) {
      pack_values<Dot>(block, ahead, p.values.size, value_size,
                       reinterpret_cast<Element*>(scratch.values), packed_values);
    }
    if constexpr (Dot::kIsOnTiles && sizeof(Cache) == 2) {
      if (!pack) {
        unit.score_stored(keys, num_rows, block.keys(), p.keys.row_stride, block.count,
                          Dot::steps(p.keys.size), ahead, scratch.scores);
      }
    }
    // From the first token that sees the block's first key to the last that sees its last.
    const int64_t before = max_of<int64_t>(0, key - p.num_ahead - tile.first_position);
    const int64_t end = min_of(
        tile.num_tokens, end_of_view(p, key + block.count - 1) - tile.first_position);
    for (int64_t first = before * group; first < end * group; first += Dot::kGroupRows) {
      const int64_t count = min_of<int64_t>(Dot::kGroupRows, end * group - first);
      if constexpr (sizeof(Cache) > 1 && !Dot::kIsOnTiles) {
        if (!convert) {
          const PackedBlock<Element, Cache> stored = {
              key, block.count, pack ? keys : nullptr, block.values(), nullptr,
              block.keys()};
          attend_rows<Dot>(p, tile, rows, first, count, stored, ahead, scratch.scores);
          continue;
        }
      }
      const PackedBlock<Element, Element> packed = {key, block.count, pack ? keys : nullptr,
                                                    packed_values, used_scales};
      // Stored keys' scores are there already, for all rows.
      float* scores = scratch.scores + (pack ? 0 : first * kKeys);
      attend_rows<Dot>(p, tile, rows, first, count, packed, ahead, scores);
    }
  }
  for (int64_t r = 0; r < num_rows; ++r) state[num_rows + r] = reduce_add(rows.sums[r]);
}

template <class Cache>
void attend_narrow(const Attention& p, const AttentionSpan& of, const AttentionSpan& after,
                   float* state, float* scratch) {
#if VLLM_LITE_HAS_PAIR_PRODUCTS
#if defined(VLLM_LITE_HAS_TILE_ATTENTION)
  using Dot = BFloat16TileDot;
#else
  using Dot = BFloat16PairDot;
#endif
  if (p.dtype == DType::kBFloat16) return attend<Dot, Cache>(p, of, after, state, scratch);
#endif
  attend<Float32Dot, Cache>(p, of, after, state, scratch);
}

void attend_span(const Attention& p, const AttentionSpan& of, const AttentionSpan& after,
                 float* state, float* scratch) {
  switch (p.cache_dtype) {
    case DType::kFloat32: return attend<Float32Dot, float>(p, of, after, state, scratch);
    case DType::kBFloat16: return attend_narrow<BFloat16>(p, of, after, state, scratch);
    case DType::kFloat8E4M3: return attend_narrow<Float8E4M3>(p, of, after, state, scratch);
    case DType::kFloat8E5M2: return attend_narrow<Float8E5M2>(p, of, after, state, scratch);
    case DType::kInt8: return attend_narrow<Int8>(p, of, after, state, scratch);
  }
}

void merge(int64_t rows, int64_t value_size, float* state, const float* later) {
  const int64_t row_size = padded_size(value_size);
  for (int64_t r = 0; r < rows; ++r) {
    const float max = max_of(state[r], later[r]);
    if (max == -INFINITY) continue;
    const float mine = power_of_two(state[r] - max);
    const float theirs = power_of_two(later[r] - max);
    state[r] = max;
    state[rows + r] = state[rows + r] * mine + later[rows + r] * theirs;
    float* to = state + 2 * rows + r * row_size;
    const float* from = later + 2 * rows + r * row_size;
    for (int64_t d = 0; d < row_size; d += kLanes) {
      store(to + d, load(to + d) * mine + load(from + d) * theirs);
    }
  }
}

template <class T>
void write_rows(const Attention& p, const AttentionTile& tile, const float* state) {
  const int64_t group = p.num_heads / p.num_kv_heads;
  const int64_t rows = tile.num_tokens * group;
  const float* values = state + 2 * rows;
  for (int64_t r = 0; r < rows; ++r, values += padded_size(p.values.size)) {
    const int64_t head = tile.kv_head * group + r % group;
    const int64_t row = (tile.first_token + r / group) * p.num_heads + head;
    T* out = static_cast<T*>(p.output) + row * p.values.size;
    float scale = 1.0f / state[rows + r];
    if (p.sinks != nullptr || p.lse != nullptr) {
      // Relative to the largest score, that of the sink included.
      const float sink = p.sinks == nullptr ? -INFINITY : p.sinks[head] * kLog2E;
      const float largest = max_of(state[r], sink), mine = power_of_two(state[r] - largest);
      const float sum = state[rows + r] * mine + power_of_two(sink - largest);
      if (p.sinks != nullptr) scale = mine / sum;
      if (p.lse != nullptr) p.lse[row] = (largest + log2f(sum)) / kLog2E;
    }
    for_each_vector(p.values.size, [&](int64_t d, int64_t count) {
      store_sums(out + d, load(values + d) * scale, count);
    });
  }
}

void write_output(const Attention& p, const AttentionTile& tile, const float* state) {
  with_type(p.dtype, [&](auto number) { write_rows<decltype(number)>(p, tile, state); });
}

}  // namespace

const AttentionKernels kAttention = {padded_size, scratch_floats, attend_span, merge,
                                     write_output};

}  // namespace vllm_lite::VLLM_LITE_ISA
