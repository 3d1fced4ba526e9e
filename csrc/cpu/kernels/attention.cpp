// Flash attention (arXiv:2205.14135) of a tile of query rows over a paged context.
//
// Keys are taken 64 at a time and transposed, so that a vector holds one dimension of many keys:
// scores then need no sums across lanes, and each is added up in the same order whatever the
// number of rows. Rows go through registers in groups of up to kMaxRows.
#include "cpu/kernels/kernels.h"

namespace vllm_lite::VLLM_LITE_ISA {
namespace {

constexpr int kKeys = 64;
constexpr int kKeyVectors = kKeys / kLanes;
constexpr int kCacheLine = 64;
constexpr int kMaxRows = 6;
// kMaxRows * kMaxVectors accumulators fill the register file: 32 registers, or 16.
constexpr int kMaxVectors = kLanes == 16 ? 4 : 2;
static_assert(kSpan % kKeys == 0);

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

// How queries and keys are multiplied. A step takes one element of a query row and one vector of
// elements of as many keys.
struct Float32Dot {
  using Element = float;
  static int64_t steps(int64_t head_size) { return head_size; }
  static Vec spread(float element) { return broadcast(element); }
  static Vec step(Vec sum, Vec query, Vec keys) { return multiply_add(query, keys, sum); }
};

#if defined(__AVX512BF16__)
// An element is a pair of neighbouring dimensions in bfloat16; products are exact.
struct BFloat16PairDot {
  using Element = uint32_t;
  static int64_t steps(int64_t head_size) { return (head_size + 1) / 2; }
  static Vec spread(uint32_t element) { return bit_cast<Vec>(BitsVec{} + element); }
  static Vec step(Vec sum, Vec query, Vec keys) {
    return _mm512_dpbf16_ps(sum, bit_cast<__m512bh>(query), bit_cast<__m512bh>(keys));
  }
};
#endif

// One block of keys: where they and their values lie. Entries beyond `count` repeat the last.
template <class Cache>
struct KeyBlock {
  int64_t count;
  const Cache* keys[kKeys];
  const Cache* values[kKeys];
};

template <class Cache>
void locate_keys(const Attention& p, const AttentionTile& tile, int64_t begin, int64_t end,
                 KeyBlock<Cache>& block) {
  block.count = min_of<int64_t>(kKeys, end - begin);
  const Cache* key_cache = static_cast<const Cache*>(p.key_cache);
  const Cache* value_cache = static_cast<const Cache*>(p.value_cache);
  const int64_t head = tile.kv_head * p.block_size * p.head_size;
  int64_t index = begin / p.block_size;
  int64_t slot = begin % p.block_size;
  for (int64_t i = 0; i < kKeys; ++i) {
    if (i >= block.count) {
      block.keys[i] = block.keys[block.count - 1];
      block.values[i] = block.values[block.count - 1];
      continue;
    }
    const int64_t id = tile.blocks[index];
    block.keys[i] = key_cache + id * p.key_block_stride + head + slot * p.head_size;
    block.values[i] = value_cache + id * p.value_block_stride + head + slot * p.head_size;
    if (++slot == p.block_size) slot = 0, ++index;
  }
}

// Blocks of a cache lie anywhere in memory, where the hardware foresees little. So each pass over a
// block asks for the same part of the next one, little by little: a burst of requests would stall.
inline void prefetch(const void* from, int64_t bytes) {
  for (int64_t line = 0; line < bytes; line += kCacheLine) {
    __builtin_prefetch(static_cast<const char*>(from) + line);
  }
}

// ---- packing

inline BitsVec load_words(const void* from, int64_t bytes) {
  BitsVec words{};
  if (bytes >= static_cast<int64_t>(sizeof words)) {
    memcpy(&words, from, sizeof words);
  } else {
    uint8_t padded[sizeof words] = {};
    memcpy(padded, from, bytes);
    memcpy(&words, padded, sizeof words);
  }
  return words;
}

inline void store_words(void* to, BitsVec words) { memcpy(to, &words, sizeof words); }

inline void store_key_words(float* packed, int64_t word, int64_t, BitsVec words, const float*) {
  store_words(packed + word * kKeys, words);
}
// Each word is two neighbouring dimensions: widened for float arithmetic, kept for pairs.
inline void store_key_words(float* packed, int64_t word, int64_t head_size, BitsVec words,
                            const BFloat16*) {
  store_words(packed + 2 * word * kKeys, words << 16);
  if (2 * word + 1 < head_size) {
    store_words(packed + (2 * word + 1) * kKeys, words & 0xffff0000u);
  }
}
inline void store_key_words(uint32_t* packed, int64_t word, int64_t, BitsVec words,
                            const BFloat16*) {
  store_words(packed + word * kKeys, words);
}

// Transposes keys to packed [dimension (or pair), kKeys].
template <class Element, class Cache>
void pack_keys(const KeyBlock<Cache>& block, const KeyBlock<Cache>& next, int64_t head_size,
               Element* packed) {
  const int64_t bytes = head_size * sizeof(Cache);
  const int64_t num_words = (bytes + 3) / 4;
  // Scores of keys beyond the last are garbage that the softmax masks.
  for (int first = 0; first < block.count; first += kLanes) {
    for (int64_t word = 0; word < num_words; word += kLanes) {
      BitsVec rows[kLanes];
      for (int i = 0; i < kLanes; ++i) {
        const char* key = reinterpret_cast<const char*>(block.keys[first + i]);
        const char* next_key = reinterpret_cast<const char*>(next.keys[first + i]);
        prefetch(next_key + 4 * word, min_of<int64_t>(sizeof rows[i], bytes - 4 * word));
        rows[i] = load_words(key + 4 * word, bytes - 4 * word);
      }
      transpose(rows);
      const int64_t count = min_of<int64_t>(kLanes, num_words - word);
      for (int64_t i = 0; i < count; ++i) {
        store_key_words(packed + first, word + i, head_size, rows[i],
                        static_cast<const Cache*>(nullptr));
      }
    }
  }
}

template <class Cache>
void widen_values(const KeyBlock<Cache>& block, const KeyBlock<Cache>& next, int64_t head_size,
                  int64_t padded, float* widened, const float* (&rows)[kKeys]) {
  for (int64_t i = 0; i < block.count; ++i, widened += padded) {
    prefetch(next.values[i], head_size * sizeof(Cache));
    for_each_vector(head_size, [&](int64_t d, int64_t count) {
      store(widened + d, load_upto(block.values[i] + d, count));
    });
    rows[i] = widened;
  }
}

template <class Query>
void pack_row(const Query* from, int64_t head_size, float* to) {
  for_each_vector(head_size, [&](int64_t d, int64_t count) {
    store_upto(to + d, load_upto(from + d, count), count);
  });
}
template <class Query>
void pack_row(const Query* from, int64_t head_size, uint32_t* to) {
  to[(head_size - 1) / 2] = 0;
  memcpy(to, from, head_size * sizeof(Query));
}

template <class Query, class Element>
void pack_query(const Attention& p, const AttentionTile& tile, int64_t row_size, Element* packed) {
  const int64_t group = p.num_heads / p.num_kv_heads;
  const Query* first = static_cast<const Query*>(p.query) +
                       tile.first_token * p.query_token_stride +
                       tile.kv_head * group * p.query_head_stride;
  for (int64_t token = 0; token < tile.num_tokens; ++token) {
    for (int64_t head = 0; head < group; ++head, packed += row_size) {
      pack_row(first + token * p.query_token_stride + head * p.query_head_stride, p.head_size,
               packed);
    }
  }
}

// ---- arithmetic

template <class Dot, int R, int V>
inline void score_keys(const typename Dot::Element* query, int64_t row_size,
                       const typename Dot::Element* keys, int64_t steps, float* scores) {
  Vec sums[R][V] = {};
  for (int64_t step = 0; step < steps; ++step) {
    Vec key[V];
    for (int v = 0; v < V; ++v) memcpy(&key[v], keys + step * kKeys + v * kLanes, sizeof(Vec));
    for (int r = 0; r < R; ++r) {
      const Vec element = Dot::spread(query[r * row_size + step]);
      for (int v = 0; v < V; ++v) sums[r][v] = Dot::step(sums[r][v], element, key[v]);
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int v = 0; v < V; ++v) store(scores + r * kKeys + v * kLanes, sums[r][v]);
  }
}

template <int R, int V, class Value>
inline void add_values(const float* weights, const Value* const* values, const Value* const* next,
                       int64_t num_keys, int64_t offset, float* sums, int64_t row_size) {
  Vec sum[R][V];
  for (int r = 0; r < R; ++r) {
    for (int v = 0; v < V; ++v) sum[r][v] = load(sums + r * row_size + offset + v * kLanes);
  }
  for (int64_t key = 0; key < num_keys; ++key) {
    prefetch(next[key] + offset, V * kLanes * sizeof(Value));
    Vec value[V];
    for (int v = 0; v < V; ++v) value[v] = load(values[key] + offset + v * kLanes);
    for (int r = 0; r < R; ++r) {
      const Vec weight = broadcast(weights[r * kKeys + key]);
      for (int v = 0; v < V; ++v) sum[r][v] = multiply_add(weight, value[v], sum[r][v]);
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int v = 0; v < V; ++v) store(sums + r * row_size + offset + v * kLanes, sum[r][v]);
  }
}

template <int R, class Value>
inline void add_value_rows(const float* weights, const Value* const* values,
                           const Value* const* next, int64_t num_keys, float* sums,
                           int64_t row_size) {
  for (int64_t offset = 0; offset < row_size;) {
    const int64_t vectors = min_of<int64_t>(kMaxVectors, (row_size - offset) / kLanes);
    with_constant<kMaxVectors>(vectors, [&](auto v) {
      add_values<R, decltype(v)::value>(weights, values, next, num_keys, offset, sums, row_size);
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
inline void update_softmax(const Attention& p, float* scores, int64_t visible_begin,
                           int64_t visible_end, const SoftmaxRow& row, int64_t row_size) {
  const Vec nothing = broadcast(-INFINITY);
  IntVec lane;
  for (int i = 0; i < kLanes; ++i) lane[i] = i;
  Vec x[kKeyVectors];
  Vec highest = nothing;
  for (int v = 0; v < kKeyVectors; ++v) {
    x[v] = load(scores + v * kLanes) * p.scale;
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
    const Vec weight = exponential(x[v] - new_max);
    store(scores + v * kLanes, weight);
    sum += weight;
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
        sums(reinterpret_cast<Vec*>(scores + kMaxRows * kKeys)) {}
  float* query;
  float* keys;
  float* values;
  float* scores;
  Vec* sums;
};

int64_t scratch_floats(int64_t rows, int64_t head_size) {
  return (rows + 2 * kKeys) * padded_head_size(head_size) + kMaxRows * kKeys + rows * kLanes;
}

template <class Dot, class Cache>
void attend(const Attention& p, const AttentionTile& tile, int64_t span, float* state,
            float* memory) {
  using Element = typename Dot::Element;
  const int64_t group = p.num_heads / p.num_kv_heads;
  const int64_t rows = tile.num_tokens * group;
  const int64_t row_size = padded_head_size(p.head_size);
  const Scratch scratch(memory, rows, row_size);
  Element* query = reinterpret_cast<Element*>(scratch.query);
  Element* keys = reinterpret_cast<Element*>(scratch.keys);
  float* maxima = state;
  float* values = state + 2 * rows;
  for (int64_t r = 0; r < rows; ++r) maxima[r] = -INFINITY, scratch.sums[r] = Vec{};
  memset(values, 0, rows * row_size * sizeof(float));
  if (p.dtype == DType::kBFloat16) {
    pack_query<BFloat16>(p, tile, row_size, query);
  } else {
    pack_query<float>(p, tile, row_size, query);
  }

  const int64_t window = p.sliding_window > 0 ? p.sliding_window : INT64_MAX / 2;
  const int64_t oldest = max_of<int64_t>(0, tile.first_position - window + 1);
  const int64_t begin = max_of(span * kSpan, oldest / kKeys * kKeys);
  const int64_t end = min_of((span + 1) * kSpan, tile.first_position + tile.num_tokens);
  const int64_t rows_at_once = ceil_divide(rows, ceil_divide(rows, kMaxRows));
  // Values are widened once for all rows, unless there is but one group of rows to use them.
  const bool widen = row_size != p.head_size || (sizeof(Cache) == 2 && rows > kMaxRows);
  KeyBlock<Cache> blocks[2];
  const float* widened[kKeys];
  locate_keys(p, tile, begin, end, blocks[begin / kKeys % 2]);
  for (int64_t key = begin; key < end; key += kKeys) {
    KeyBlock<Cache>& block = blocks[key / kKeys % 2];
    KeyBlock<Cache>& next = blocks[(key / kKeys + 1) % 2];
    locate_keys(p, tile, key + kKeys < end ? key + kKeys : key, end, next);
    pack_keys(block, next, p.head_size, keys);
    if (widen) {
      widen_values(block, next, p.head_size, row_size, scratch.values, widened);
    }
    for (int64_t first = 0; first < rows; first += rows_at_once) {
      const int64_t count = min_of(rows_at_once, rows - first);
      const int64_t first_position = tile.first_position + first / group;
      const int64_t last_position = tile.first_position + (first + count - 1) / group;
      if (last_position < key || first_position - window >= key + block.count) continue;
      with_constant<kMaxRows>(count, [&](auto constant) {
        constexpr int R = decltype(constant)::value;
        for (int v = 0; v < kKeyVectors; v += kMaxVectors) {
          score_keys<Dot, R, kMaxVectors>(query + first * row_size, row_size, keys + v * kLanes,
                                          Dot::steps(p.head_size), scratch.scores + v * kLanes);
        }
        for (int64_t r = first; r < first + count; ++r) {
          const int64_t position = tile.first_position + r / group;
          update_softmax(p, scratch.scores + (r - first) * kKeys,
                         max_of<int64_t>(0, position - window + 1 - key),
                         min_of(block.count, position + 1 - key),
                         {maxima + r, scratch.sums + r, values + r * row_size}, row_size);
        }
        const int64_t num_keys = min_of(block.count, last_position + 1 - key);
        float* sums = values + first * row_size;
        if (widen) {
          add_value_rows<R>(scratch.scores, widened, widened, num_keys, sums, row_size);
        } else {
          add_value_rows<R>(scratch.scores, block.values, next.values, num_keys, sums, row_size);
        }
      });
    }
  }
  for (int64_t r = 0; r < rows; ++r) state[rows + r] = reduce_add(scratch.sums[r]);
}

void attend_span(const Attention& p, const AttentionTile& tile, int64_t span, float* state,
                 float* scratch) {
  if (p.cache_dtype == DType::kFloat32) {
    attend<Float32Dot, float>(p, tile, span, state, scratch);
    return;
  }
#if defined(__AVX512BF16__)
  if (p.dtype == DType::kBFloat16) {
    attend<BFloat16PairDot, BFloat16>(p, tile, span, state, scratch);
    return;
  }
#endif
  attend<Float32Dot, BFloat16>(p, tile, span, state, scratch);
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
