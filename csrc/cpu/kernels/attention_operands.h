// Attention's operands: scattered rows of the cache packed into blocks of elements, as wide
// as the arithmetic needs. For attention.cpp only.
#pragma once

#include "cpu/isa.h"
#include "cpu/kernels/amx/tiles.h"
#include "cpu/kernels/cached_numbers.h"
#include "cpu/kernels/kernels.h"
#include "cpu/kernels/powers.h"

namespace vllm_lite::VLLM_LITE_ISA {
namespace {

constexpr int kKeys = 64;  // in a block
constexpr int kCacheLine = 64;
static_assert(kSpan % kKeys == 0);

// Query rows whose softmax is computed together, to overlap latencies.
constexpr int kMostGroupRows = 48;

struct NoUnit {};

// The arithmetic of both GEMMs. A step of the first takes one element of a query row and of as
// many keys as a vector has lanes; a step of the second one element of a weight row and as many
// dimensions of values. Values come as stored, or converted by `load_values`.
struct Float32Dot {
  using Element = float;
  static constexpr int kGroupRows = 48;
  static constexpr bool kIsOnTiles = false;
  using Unit = NoUnit;  // what carries products out
  static constexpr int kKeysPerStep = 1;
  static int64_t steps(int64_t head_size) { return head_size; }
  static Vec spread(float element) { return broadcast(element); }
  static Vec step(Vec sum, Vec element, Vec elements) {
    return multiply_add(element, elements, sum);
  }
  // Of a bfloat16 pair.
  static Vec element(BitsVec pair, int i) {
    return bit_cast<Vec>(i == 0 ? pair << 16 : pair & 0xffff0000u);
  }
  static constexpr auto& kPowers = kFinePowers;
  // Returns the sum plus what was stored.
  template <int N>
  static Vec store_weights(float* row, int64_t first, const Vec (&weights)[N], Vec sum) {
    for (int i = 0; i < N; ++i) {
      store(row + first + i * kLanes, weights[i]);
      sum += weights[i];
    }
    return sum;
  }
  template <class Value>
  static Vec load_values(const Value* const* rows, int64_t step, int64_t offset, int64_t count) {
    return load_upto(rows[step] + offset, count);
  }
};

#if VLLM_LITE_HAS_PAIR_PRODUCTS
// An element is a pair of neighbours in bfloat16: dimensions in the first product, keys in the
// second. Products are exact, sums float32. Weights are rounded, and their sum is that of the
// rounded ones.
struct BFloat16PairDot {
  using Element = uint32_t;
  static constexpr int kGroupRows = 48;
  static constexpr bool kIsOnTiles = false;
  using Unit = NoUnit;  // what carries products out
  static constexpr int kKeysPerStep = 2;
  static int64_t steps(int64_t head_size) { return (head_size + 1) / 2; }
  static Vec spread(uint32_t element) { return bit_cast<Vec>(BitsVec{} + element); }
  static Vec step(Vec sum, Vec element, Vec elements) {
#if defined(__aarch64__)
    return vbfdotq_f32(sum, bit_cast<bfloat16x8_t>(element), bit_cast<bfloat16x8_t>(elements));
#else
    return _mm512_dpbf16_ps(sum, bit_cast<__m512bh>(element), bit_cast<__m512bh>(elements));
#endif
  }
  static Vec element(BitsVec pair, int) { return bit_cast<Vec>(pair); }
  static constexpr auto& kPowers = kRoughPowers;
  template <int N>
  static Vec store_weights(float* row, int64_t first, const Vec (&weights)[N], Vec sum) {
#if defined(__aarch64__)
    // Kept from GCC 12, which would write bfloat16's ones as those of half floats.
    Vec ones = bit_cast<Vec>(BitsVec{} + 0x3f803f80u);
    asm("" : "+w"(ones));
#else
    const Vec ones = bit_cast<Vec>(BitsVec{} + 0x3f803f80u);
#endif
    for (int i = 0; i < N; i += 2) {
#if defined(__aarch64__)
      const bfloat16x8_t rounded =
          vcvtq_high_bf16_f32(vcvtq_low_bf16_f32(weights[i]), weights[i + 1]);
#else
      const __m512bh rounded = _mm512_cvtne2ps_pbh(weights[i + 1], weights[i]);
#endif
      memcpy(reinterpret_cast<BFloat16*>(row) + first + i * kLanes, &rounded, sizeof rounded);
      sum = step(sum, bit_cast<Vec>(rounded), ones);
    }
    return sum;
  }
  [[gnu::always_inline]] static Vec load_values(const BFloat16* const* rows, int64_t step, int64_t offset, int64_t count) {
    const Vec even = load_upto(rows[2 * step] + offset, count);
    const Vec odd = load_upto(rows[2 * step + 1] + offset, count);
    return bit_cast<Vec>(bit_cast<BitsVec>(even) >> 16 | bit_cast<BitsVec>(odd));
  }
  template <IsCode Code>
  static Vec load_values(const Code* const* rows, int64_t step, int64_t offset, int64_t count) {
    const BitsVec even = load_bytes(rows[2 * step] + offset, count);
    const BitsVec odd = load_bytes(rows[2 * step + 1] + offset, count);
    return bit_cast<Vec>(decode_pairs(even | odd << 16, rows[0]));
  }
  // Two vectors at once: half of the instructions.
  static void load_values(const BFloat16* const* rows, int64_t step, int64_t offset, Vec& first,
                          Vec& second) {
#if defined(__aarch64__)
    uint16x8_t even, odd;
    memcpy(&even, rows[2 * step] + offset, sizeof even);
    memcpy(&odd, rows[2 * step + 1] + offset, sizeof odd);
    first = bit_cast<Vec>(vzip1q_u16(even, odd));
    second = bit_cast<Vec>(vzip2q_u16(even, odd));
#else
    alignas(64) static constexpr auto kOrder = [] {
      struct { uint16_t of[2][32]; } order{};
      for (int i = 0; i < 64; ++i) order.of[i / 32][i % 32] = i / 2 + i % 2 * 32;
      return order;
    }();
    const __m512i even = _mm512_loadu_si512(rows[2 * step] + offset);
    const __m512i odd = _mm512_loadu_si512(rows[2 * step + 1] + offset);
    first = bit_cast<Vec>(
        _mm512_permutex2var_epi16(even, _mm512_load_si512(kOrder.of[0]), odd));
    second = bit_cast<Vec>(
        _mm512_permutex2var_epi16(even, _mm512_load_si512(kOrder.of[1]), odd));
#endif
  }
  static Vec load_values(const uint32_t* const* rows, int64_t step, int64_t offset, int64_t) {
    Vec pairs;
    memcpy(&pairs, rows[step] + offset, sizeof pairs);
    return pairs;
  }
};
#endif

// Pointers to a block's keys and values. Entries beyond `count` repeat the last.
template <class Cache>
struct KeyBlock {
  int64_t count;
  const Cache* rows[2 * kKeys];

  const Cache* const* keys() const { return rows; }
  const Cache* const* values() const { return rows + kKeys; }
};

// Scales of a block's rows, if any: scores are multiplied by those
// of keys, weights by those of values.
struct RowScales {
  float keys[kKeys];
  float values[kKeys];
};

template <class Cache>
void load_scales(const Attention& p, const KeyBlock<Cache>& block, RowScales& scales) {
  for (int i = 0; i < kKeys; ++i) {
    memcpy(scales.keys + i, block.keys()[i] + p.keys.size, sizeof(float));
    memcpy(scales.values + i, block.values()[i] + p.values.size, sizeof(float));
  }
}

// Iterates over blocks of the keys at positions [begin, end).
template <class Cache>
void locate_keys(const Attention& p, const AttentionTile& tile, int64_t begin, int64_t end,
                 KeyBlock<Cache>& block) {
  block.count = min_of<int64_t>(kKeys, end - begin);
  const int64_t key_stride = p.keys.row_stride, value_stride = p.values.row_stride;
  const Cache* keys = static_cast<const Cache*>(p.keys.rows) + tile.kv_head * p.keys.head_stride;
  const Cache* values =
      static_cast<const Cache*>(p.values.rows) + tile.kv_head * p.values.head_stride;
  int64_t index = begin / p.block_size;
  int64_t slot = begin % p.block_size;
  for (int64_t i = 0; i < block.count; ++index, slot = 0) {
    const int64_t id = tile.blocks[index];
    const Cache* key = keys + id * p.keys.block_stride + slot * key_stride;
    const Cache* value = values + id * p.values.block_stride + slot * value_stride;
    const int64_t last = min_of(block.count, i + p.block_size - slot);
    for (; i < last; ++i, key += key_stride, value += value_stride) {
      block.rows[i] = key;
      block.rows[kKeys + i] = value;
    }
  }
  for (int64_t i = block.count; i < kKeys; ++i) {
    block.rows[i] = block.rows[block.count - 1];
    block.rows[kKeys + i] = block.rows[kKeys + block.count - 1];
  }
}

// Blocks of a cache are scattered in memory, beyond the hardware prefetcher. So all work on a
// block prefetches rows of the next one, little by little: memory takes as long to load a block as
// a few query rows take to use it, and a burst of requests would stall. A Xeon with tiles waits for
// few lines at once in its first cache, too. On tiles three heads of 64 ask for 32 rows with the
// packing of values, 32 with scores, the rest with softmax and values.
class RowsAhead {
 public:
  template <class Cache>
  RowsAhead(const Attention& p, const KeyBlock<Cache>& block)
      : rows_(reinterpret_cast<const char* const*>(block.rows)),
        row_bytes_(max_of(p.keys.size, p.values.size) * sizeof(Cache) +
                   (p.has_row_scales ? sizeof(float) : 0)),
        asks_second_cache_(VLLM_LITE_HAS_TILES || asks_second_cache()) {}
  void ask(int64_t count) {
    for (; count > 0 && next_ < 2 * kKeys; --count) {
      const char* row = rows_[next_++];
      for (int64_t i = 0; i < row_bytes_; i += kCacheLine) {
        if (asks_second_cache_) {
          __builtin_prefetch(row + i, 0, 2);
        } else {
          __builtin_prefetch(row + i);
        }
      }
    }
  }

 private:
  const char* const* rows_;
  int64_t row_bytes_;  // of the longer
  bool asks_second_cache_;
  int64_t next_ = 0;
};

// Rows in place if groups of four are evenly spaced; otherwise copied to `scratch`, padded with
// zeros to whole quarters of vectors.
inline FoursOfRows gather_rows(const char* const* rows, int64_t stride, int64_t bytes,
                               char* scratch) {
  FoursOfRows gathered;
  bool is_usable = bytes % 16 == 0;
  for (int i = 0; i < kLanes; i += 4) {
    gathered.fours[i / 4] = rows[i];
    for (int k = 1; k < 4; ++k) is_usable &= rows[i + k] == rows[i] + k * stride;
  }
  gathered.stride = stride;
  if (is_usable) return gathered;
  gathered.stride = round_up(bytes, 16);
  for (int i = 0; i < kLanes; ++i, scratch += gathered.stride) {
    if (i % 4 == 0) gathered.fours[i / 4] = scratch;
    memcpy(scratch, rows[i], bytes);
    memset(scratch + bytes, 0, gathered.stride - bytes);
  }
  return gathered;
}

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

// Each word is four neighbouring dimensions. The packed keys have room for whole words.
template <IsCode Code>
inline void store_key_words(float* packed, int64_t word, int64_t, BitsVec words, const Code* type) {
  for (int i = 0; i < 4; ++i) {
    store(packed + (4 * word + i) * kKeys, decode((words >> (8 * i)) & 0xff, type));
  }
}
#if VLLM_LITE_HAS_PAIR_PRODUCTS
template <IsCode Code>
inline void store_key_words(uint32_t* packed, int64_t word, int64_t, BitsVec words,
                            const Code* type) {
  const BitsVec first = (words & 0xff) | (words & 0xff00) << 8;
  const BitsVec second = (words >> 16 & 0xff) | (words >> 8 & 0xff0000);
  store_words(packed + 2 * word * kKeys, decode_pairs(first, type));
  store_words(packed + (2 * word + 1) * kKeys, decode_pairs(second, type));
}
#endif

// Transposes keys to packed [dimension (or pair), kKeys]. `scratch` holds kLanes rows.
template <class Element, class Cache>
void pack_keys(const CachedRows& cache, const KeyBlock<Cache>& block, RowsAhead& next,
               char* scratch, Element* packed) {
  const int64_t head_size = cache.size, row_bytes = cache.row_stride * sizeof(Cache);
  const int64_t bytes = head_size * sizeof(Cache);
  const int64_t num_words = ceil_divide(bytes, 4);
  const Cache* const type = nullptr;
  RowsAhead ahead = next;
  // Scores of keys beyond the last are garbage that the softmax masks.
  for (int first = 0; first < block.count; first += kLanes) {
    const FoursOfRows rows =
        gather_rows(reinterpret_cast<const char* const*>(block.keys() + first), row_bytes, bytes,
                    scratch);
    int64_t word = 0;
    for (; word + 4 <= num_words; word += 4) {
      BitsVec words[4];
      load_words(rows, 4 * word, words);
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) {
        store_key_words(packed + first, word + i, head_size, words[i], type);
      }
      ahead.ask(1);
    }
    if (word < num_words) {
      BitsVec words[4];
      load_words(rows, 4 * word, words);
      for (int i = 0; word + i < num_words; ++i) {
        store_key_words(packed + first, word + i, head_size, words[i], type);
      }
    }
  }
  next = ahead;
}

// Converts values once for all rows: packed [steps, padded head size].
template <class Dot, class Cache>
void pack_values(const KeyBlock<Cache>& block, RowsAhead& next, int64_t size, int64_t row_size, typename Dot::Element* packed,
                 const typename Dot::Element* (&rows)[kKeys]) {
  RowsAhead ahead = next;
  constexpr bool kTwo = requires(const Cache* const* from, Vec value) {
    Dot::load_values(from, 0, 0, value, value);
  };
  for (int64_t step = 0; step < ceil_divide(block.count, Dot::kKeysPerStep); ++step) {
    int64_t done = 0;
    if constexpr (kTwo) {
      for (; done + 2 * kLanes <= size; done += 2 * kLanes) {
        Vec first, second;
        Dot::load_values(block.values(), step, done, first, second);
        memcpy(packed + done, &first, sizeof first);
        memcpy(packed + done + kLanes, &second, sizeof second);
      }
    }
    for_each_vector(size - done, [&](int64_t d, int64_t count) {
      const Vec elements = Dot::load_values(block.values(), step, done + d, count);
      memcpy(packed + done + d, &elements, sizeof elements);
    });
    rows[step] = packed;
    packed += row_size;
    ahead.ask(1);
  }
  if constexpr (Dot::kIsOnTiles) {
    const int64_t missing = (kKeys - block.count) / Dot::kKeysPerStep;
    memset(packed, 0, missing * row_size * sizeof *packed);
  }
  next = ahead;
}

// Zeros after the last pair of dimensions, up to whole tiles, which add them up.
inline void clear_keys_beyond(int64_t head_size, uint32_t* keys) {
  const int64_t steps = (head_size + 1) / 2;
  memset(keys + steps * kKeys, 0, (round_up(steps, 16) - steps) * kKeys * sizeof *keys);
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
  for (; head_size >= 2 * kLanes; head_size -= 2 * kLanes, from += 2 * kLanes, to += kLanes) {
    memcpy(to, from, sizeof(Vec));
  }
  if (head_size > 0) memcpy(to, from, head_size * sizeof(Query));
}

template <class Query, class Element>
void pack_rows(const Attention& p, const AttentionTile& tile, int64_t row_size, Element* packed) {
  const int64_t group = p.num_heads / p.num_kv_heads;
  const Query* first = static_cast<const Query*>(p.query) +
                       tile.first_token * p.query_token_stride +
                       tile.kv_head * group * p.query_head_stride;
  for (int64_t token = 0; token < tile.num_tokens; ++token) {
    for (int64_t head = 0; head < group; ++head, packed += row_size) {
      pack_row(first + token * p.query_token_stride + head * p.query_head_stride, p.keys.size,
               packed);
    }
  }
}

template <class Dot>
void pack_query(const Attention& p, const AttentionTile& tile, int64_t row_size,
                typename Dot::Element* packed) {
  if constexpr (Dot::kIsOnTiles) {
    const int64_t num_rows = tile.num_tokens * (p.num_heads / p.num_kv_heads);
    memset(packed, 0, num_rows * row_size * sizeof *packed);
  }
  if (p.dtype == DType::kBFloat16) {
    pack_rows<BFloat16>(p, tile, row_size, packed);
  } else {
    pack_rows<float>(p, tile, row_size, packed);
  }
}

}  // namespace
}  // namespace vllm_lite::VLLM_LITE_ISA
