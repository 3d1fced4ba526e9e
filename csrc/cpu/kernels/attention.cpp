// Flash attention (arXiv:2205.14135) of a tile of query rows over a paged context.
//
// Keys are taken 64 at a time and transposed, so that a vector holds one dimension of many keys:
// scores then need no sums across lanes, and each is added up in the same order whatever the
// number of rows. Rows go through registers in groups of up to kMaxRows.
#include "cpu/kernels/attention_operands.h"

namespace vllm_lite::VLLM_LITE_ISA {
namespace {

constexpr int kKeyVectors = kKeys / kLanes;
constexpr int kMaxRows = 6;
// kMaxRows * kMaxVectors accumulators fill the register file: 32 registers, or 16.
constexpr int kMaxVectors = kLanes == 16 ? 4 : 2;

template <int N>
struct Constant {
  static constexpr int value = N;
};

// Calls body(Constant<n>) for 1 <= n <= N.
template <int N, class Body>
inline void with_constant(int64_t n, Body&& body) {
  if constexpr (N > 1) {
    if (n < N) return with_constant<N - 1>(n, body);
  }
  body(Constant<N>{});
}

// ---- arithmetic

template <class Dot, int R, int V, class Cache>
inline void score_keys(const typename Dot::Element* query, int64_t row_size,
                       const typename Dot::Element* keys, int64_t steps, RowsAhead<Cache>& next,
                       float* scores) {
  RowsAhead<Cache> ahead = next;
  Vec sums[R][V];
  for (int r = 0; r < R; ++r) {
    for (int v = 0; v < V; ++v) sums[r][v] = Vec{};
  }
  for (int64_t step = 0; step < steps; ++step) {
    Vec key[V];
    for (int v = 0; v < V; ++v) memcpy(&key[v], keys + step * kKeys + v * kLanes, sizeof(Vec));
    for (int r = 0; r < R; ++r) {
      const Vec element = Dot::spread(query[r * row_size + step]);
      for (int v = 0; v < V; ++v) sums[r][v] = Dot::step(sums[r][v], element, key[v]);
    }
    ahead.ask(1);
  }
  for (int r = 0; r < R; ++r) {
    for (int v = 0; v < V; ++v) store(scores + r * kKeys + v * kLanes, sums[r][v]);
  }
  next = ahead;
}

template <class Dot, int R, int V, class Value, class Cache>
inline void add_values(const typename Dot::Element* weights, const Value* const* values,
                       RowsAhead<Cache>& next, int64_t num_keys, int64_t offset, float* sums,
                       int64_t row_size) {
  RowsAhead<Cache> ahead = next;
  Vec sum[R][V];
  for (int r = 0; r < R; ++r) {
    for (int v = 0; v < V; ++v) sum[r][v] = load(sums + r * row_size + offset + v * kLanes);
  }
  for (int64_t step = 0; step < ceil_divide(num_keys, Dot::kKeysPerStep); ++step) {
    Vec value[V];
    constexpr bool kTwo = V % 2 == 0 && requires {
      Dot::load_values(values, step, offset, value[0], value[0]);
    };
    for (int v = 0; v < V; v += 1 + kTwo) {
      if constexpr (kTwo) {
        Dot::load_values(values, step, offset + v * kLanes, value[v], value[v + 1]);
      } else {
        value[v] = Dot::load_values(values, step, offset + v * kLanes, kLanes);
      }
    }
    for (int r = 0; r < R; ++r) {
      const Vec weight = Dot::spread(weights[r * kKeys + step]);
      for (int v = 0; v < V; ++v) sum[r][v] = Dot::step(sum[r][v], weight, value[v]);
    }
    ahead.ask(2);
  }
  for (int r = 0; r < R; ++r) {
    for (int v = 0; v < V; ++v) store(sums + r * row_size + offset + v * kLanes, sum[r][v]);
  }
  next = ahead;
}

template <class Dot, int R, class Value, class Cache>
inline void add_value_rows(const float* weights, const Value* const* values,
                           RowsAhead<Cache>& ahead, int64_t num_keys, float* sums,
                           int64_t row_size) {
  const auto* elements = reinterpret_cast<const typename Dot::Element*>(weights);
  for (int64_t offset = 0; offset < row_size;) {
    const int64_t vectors = min_of<int64_t>(kMaxVectors, (row_size - offset) / kLanes);
    with_constant<kMaxVectors>(vectors, [&](auto v) {
      add_values<Dot, R, decltype(v)::value>(elements, values, ahead, num_keys, offset, sums,
                                             row_size);
    });
    offset += vectors * kLanes;
  }
}

struct SoftmaxRow {
  float* max;
  Vec* sum;
  float* values;
};

inline Vec cap_scores(Vec scores, float cap) {
  // tanh(y) = 1 - 2 / (e^2y + 1)
  const Vec doubled = exponential(scores * (2.0f / cap));
  return cap * (1.0f - 2.0f / (doubled + 1.0f));
}

// Turns scores into weights relative to the row's new maximum and rescales what was summed.
// Only keys [visible_begin, visible_end) of the block count.
template <class Dot>
inline void update_softmax(const Attention& p, float* scores, const RowScales* scales,
                           int64_t visible_begin, int64_t visible_end, const SoftmaxRow& row,
                           int64_t row_size) {
  const Vec nothing = broadcast(-INFINITY);
  IntVec lane;
  for (int i = 0; i < kLanes; ++i) lane[i] = i;
  Vec x[kKeyVectors];
  Vec highest = nothing;
  for (int v = 0; v < kKeyVectors; ++v) {
    x[v] = load(scores + v * kLanes) * p.scale;
    if (scales != nullptr) x[v] *= load(scales->keys + v * kLanes);
    if (p.soft_cap > 0) x[v] = cap_scores(x[v], p.soft_cap);
    if (visible_begin > 0 || visible_end < kKeys) {
      const IntVec key = lane + v * kLanes;
      const IntVec visible =
          (key >= static_cast<int32_t>(visible_begin)) & (key < static_cast<int32_t>(visible_end));
      x[v] = visible ? x[v] : nothing;
    }
    highest = max_lanes(highest, x[v]);
  }
  const float old_max = *row.max;
  const float new_max = max_of(old_max, reduce_max(highest));
  if (new_max == -INFINITY) {
    for (int v = 0; v < kKeyVectors; ++v) store(scores + v * kLanes, Vec{});
    return;
  }
  Vec sum{};
  for (int v = 0; v < kKeyVectors; ++v) {
    const Vec weights = exponential(x[v] - new_max);
    if (scales == nullptr) {
      sum += Dot::store_weights(scores, v * kLanes, weights);
    } else {
      sum += weights;
      Dot::store_weights(scores, v * kLanes, weights * load(scales->values + v * kLanes));
    }
  }
  if (new_max == old_max) {
    *row.sum += sum;
    return;
  }
  const float rescale = exponential(old_max - new_max);
  *row.max = new_max;
  *row.sum = *row.sum * rescale + sum;
  for (int64_t d = 0; d < row_size; d += kLanes) {
    store(row.values + d, load(row.values + d) * rescale);
  }
}

// ---- tiles

int64_t padded_head_size(int64_t head_size) { return round_up(head_size, kLanes); }

struct Scratch {
  Scratch(float* memory, int64_t rows, int64_t row_size)
      : query(memory),
        keys(query + rows * row_size),
        values(keys + kKeys * row_size),
        scores(values + kKeys * row_size),
        sums(reinterpret_cast<Vec*>(scores + kMaxRows * kKeys)),
        gathered(reinterpret_cast<char*>(sums + rows)) {}
  float* query;
  float* keys;
  float* values;
  float* scores;
  Vec* sums;
  char* gathered;
};

int64_t scratch_floats(int64_t rows, int64_t head_size) {
  return (rows + 2 * kKeys + kLanes) * padded_head_size(head_size) + kMaxRows * kKeys +
         rows * kLanes;
}

// What the rows of a tile have come to: views of `state` and of the scratch memory.
template <class Element>
struct TileRows {
  const Element* query;
  float* maxima;
  Vec* sums;
  float* values;
  int64_t row_size;
};

// A block of keys as the arithmetic takes it.
template <class Element, class Value>
struct PackedBlock {
  int64_t position;  // of the first key
  int64_t num_keys;
  const Element* keys;
  const Value* const* values;
  const RowScales* scales;          // or null
};

// One pass of R rows, from `first` on, over a block.
template <class Dot, int R, class Value, class Cache>
void attend_rows(const Attention& p, const AttentionTile& tile,
                 const TileRows<typename Dot::Element>& rows, int64_t first,
                 const PackedBlock<typename Dot::Element, Value>& block, RowsAhead<Cache>& ahead,
                 float* scores) {
  const int64_t group = p.num_heads / p.num_kv_heads;
  for (int v = 0; v < kKeyVectors; v += kMaxVectors) {
    score_keys<Dot, R, kMaxVectors>(rows.query + first * rows.row_size, rows.row_size,
                                    block.keys + v * kLanes, Dot::steps(p.head_size), ahead,
                                    scores + v * kLanes);
  }
  int64_t visible_end = 0;
  for (int64_t r = first; r < first + R; ++r) {
    const int64_t position = tile.first_position + r / group;
    const int64_t oldest = p.sliding_window > 0 ? position - p.sliding_window + 1 : 0;
    visible_end = min_of(block.num_keys, position + 1 - block.position);
    update_softmax<Dot>(
        p, scores + (r - first) * kKeys, block.scales,
        max_of<int64_t>(0, oldest - block.position), visible_end,
        {rows.maxima + r, rows.sums + r, rows.values + r * rows.row_size}, rows.row_size);
    ahead.ask(8);
  }
  // The last row sees the most keys.
  add_value_rows<Dot, R>(scores, block.values, ahead, visible_end,
                         rows.values + first * rows.row_size, rows.row_size);
}

// The part of a span that some row of the tile sees, from the start of a block of keys on.
struct Positions {
  Positions(const Attention& p, const AttentionSpan& of) {
    const AttentionTile& tile = *of.tile;
    const int64_t window = p.sliding_window > 0 ? p.sliding_window : INT64_MAX / 2;
    const int64_t oldest = max_of<int64_t>(0, tile.first_position - window + 1);
    begin = max_of(of.span * kSpan, oldest / kKeys * kKeys);
    end = min_of((of.span + 1) * kSpan, tile.first_position + tile.num_tokens);
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
  const int64_t row_size = padded_head_size(p.head_size);
  const Scratch scratch(memory, num_rows, row_size);
  Element* query = reinterpret_cast<Element*>(scratch.query);
  Element* keys = reinterpret_cast<Element*>(scratch.keys);
  const TileRows<Element> rows = {query, state, scratch.sums, state + 2 * num_rows, row_size};
  for (int64_t r = 0; r < num_rows; ++r) rows.maxima[r] = -INFINITY, rows.sums[r] = Vec{};
  memset(rows.values, 0, num_rows * row_size * sizeof(float));
  if (p.dtype == DType::kBFloat16) {
    pack_query<BFloat16>(p, tile, row_size, query);
  } else {
    pack_query<float>(p, tile, row_size, query);
  }

  const Positions seen(p, of), later(p, after);
  const int64_t window = p.sliding_window > 0 ? p.sliding_window : INT64_MAX / 2;
  const int64_t rows_at_once = ceil_divide(num_rows, ceil_divide(num_rows, kMaxRows));
  // Elements are made of values once for all rows, unless there is but one group to use them.
  const bool pack = row_size != p.head_size || sizeof(Cache) == 1 ||
                    (sizeof(Cache) == 2 && num_rows > kMaxRows);
  KeyBlock<Cache> blocks[2];
  const Element* packed_values[kKeys];
  RowScales scales;
  const RowScales* used_scales = p.has_row_scales ? &scales : nullptr;
  const int64_t row_bytes = cached_row_size(p.head_size, p.has_row_scales) * sizeof(Cache);
  locate_keys(p, tile, seen.begin, seen.end, blocks[seen.begin / kKeys % 2]);
  for (int64_t key = seen.begin; key < seen.end; key += kKeys) {
    const KeyBlock<Cache>& block = blocks[key / kKeys % 2];
    KeyBlock<Cache>& next = blocks[(key / kKeys + 1) % 2];
    if (key + kKeys < seen.end) {
      locate_keys(p, tile, key + kKeys, seen.end, next);
    } else {
      locate_keys(p, *after.tile, later.begin, later.end, next);
    }
    RowsAhead<Cache> ahead(next, row_bytes);
    if (p.has_row_scales) load_scales(block, p.head_size, scales);
    pack_keys(block, ahead, p.head_size, row_bytes, scratch.gathered, keys);
    if (pack) {
      pack_values<Dot>(block, ahead, p.head_size, row_size,
                       reinterpret_cast<Element*>(scratch.values), packed_values);
    }
    for (int64_t first = 0; first < num_rows; first += rows_at_once) {
      const int64_t count = min_of(rows_at_once, num_rows - first);
      const int64_t first_position = tile.first_position + first / group;
      const int64_t last_position = tile.first_position + (first + count - 1) / group;
      if (last_position < key || first_position - window >= key + block.count) continue;
      with_constant<kMaxRows>(count, [&](auto constant) {
        constexpr int R = decltype(constant)::value;
        if constexpr (sizeof(Cache) > 1) {
          if (!pack) {
            const PackedBlock<Element, Cache> stored = {key, block.count, keys, block.values(),
                                                        nullptr};
            return attend_rows<Dot, R>(p, tile, rows, first, stored, ahead, scratch.scores);
          }
        }
        const PackedBlock<Element, Element> packed = {key, block.count, keys, packed_values,
                                                      used_scales};
        attend_rows<Dot, R>(p, tile, rows, first, packed, ahead, scratch.scores);
      });
    }
  }
  for (int64_t r = 0; r < num_rows; ++r) state[num_rows + r] = reduce_add(rows.sums[r]);
}

template <class Cache>
void attend_narrow(const Attention& p, const AttentionSpan& of, const AttentionSpan& after,
                   float* state, float* scratch) {
#if defined(__AVX512BF16__)
  if (p.dtype == DType::kBFloat16) {
    attend<BFloat16PairDot, Cache>(p, of, after, state, scratch);
    return;
  }
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

void merge(int64_t rows, int64_t head_size, float* state, const float* later) {
  const int64_t row_size = padded_head_size(head_size);
  for (int64_t r = 0; r < rows; ++r) {
    const float max = max_of(state[r], later[r]);
    if (max == -INFINITY) continue;
    const float mine = exponential(state[r] - max);
    const float theirs = exponential(later[r] - max);
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
  for (int64_t r = 0; r < rows; ++r, values += padded_head_size(p.head_size)) {
    const int64_t head = (tile.first_token + r / group) * p.num_heads + tile.kv_head * group;
    T* out = static_cast<T*>(p.output) + (head + r % group) * p.head_size;
    const float scale = 1.0f / state[rows + r];
    for_each_vector(p.head_size, [&](int64_t d, int64_t count) {
      store_upto(out + d, load(values + d) * scale, count);
    });
  }
}

void write_output(const Attention& p, const AttentionTile& tile, const float* state) {
  if (p.dtype == DType::kBFloat16) {
    write_rows<BFloat16>(p, tile, state);
  } else {
    write_rows<float>(p, tile, state);
  }
}

}  // namespace

const AttentionKernels kAttention = {padded_head_size, scratch_floats, attend_span, merge,
                                     write_output};

}  // namespace vllm_lite::VLLM_LITE_ISA
