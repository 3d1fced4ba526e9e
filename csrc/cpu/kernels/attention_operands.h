// How attention takes its operands: scattered rows of the cache become blocks of elements, as wide
// as the arithmetic likes them. For attention.cpp only.
#pragma once

#include "cpu/kernels/cached_numbers.h"
#include "cpu/kernels/kernels.h"

namespace vllm_lite::VLLM_LITE_ISA {
namespace {

constexpr int kKeys = 64;  // in a block
constexpr int kCacheLine = 64;
static_assert(kSpan % kKeys == 0);

// The arithmetic of both products. A step of the first takes one element of a query row and of as
// many keys as a vector has lanes; a step of the second one element of a row of weights and as many
// dimensions of values. Values come as stored, or as the elements that `load_values` made of them.
struct Float32Dot {
  using Element = float;
  static constexpr int kKeysPerStep = 1;
  static int64_t steps(int64_t head_size) { return head_size; }
  static Vec spread(float element) { return broadcast(element); }
  static Vec step(Vec sum, Vec element, Vec elements) {
    return multiply_add(element, elements, sum);
  }
  static Vec store_weights(float* row, int64_t first, Vec weights) {
    store(row + first, weights);
    return weights;
  }
  template <class Value>
  static Vec load_values(const Value* const* rows, int64_t step, int64_t offset, int64_t count) {
    return load_upto(rows[step] + offset, count);
  }
};

#if defined(__AVX512BF16__)
// An element is a pair of neighbours in bfloat16: dimensions in the first product, keys in the
// second. Products are exact, sums float32. Weights are rounded, and their sum is that of the
// rounded ones.
struct BFloat16PairDot {
  using Element = uint32_t;
  static constexpr int kKeysPerStep = 2;
  static int64_t steps(int64_t head_size) { return (head_size + 1) / 2; }
  static Vec spread(uint32_t element) { return bit_cast<Vec>(BitsVec{} + element); }
  static Vec step(Vec sum, Vec element, Vec elements) {
    return _mm512_dpbf16_ps(sum, bit_cast<__m512bh>(element), bit_cast<__m512bh>(elements));
  }
  static Vec store_weights(float* row, int64_t first, Vec weights) {
    const HalfVec rounded = bit_cast<HalfVec>(_mm512_cvtneps_pbh(weights));
    memcpy(reinterpret_cast<BFloat16*>(row) + first, &rounded, sizeof rounded);
    return bit_cast<Vec>(widen(rounded) << 16);
  }
  static Vec load_values(const BFloat16* const* rows, int64_t step, int64_t offset, int64_t count) {
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
  static Vec load_values(const uint32_t* const* rows, int64_t step, int64_t offset, int64_t) {
    Vec pairs;
    memcpy(&pairs, rows[step] + offset, sizeof pairs);
    return pairs;
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

// What the rows of a block are multiplied by, where they have scales: scores then take the scales
// of keys, and weights those of values.
struct RowScales {
  float keys[kKeys];
  float values[kKeys];
};

template <class Cache>
void load_scales(const KeyBlock<Cache>& block, int64_t head_size, RowScales& scales) {
  for (int i = 0; i < kKeys; ++i) {
    memcpy(scales.keys + i, block.keys[i] + head_size, sizeof(float));
    memcpy(scales.values + i, block.values[i] + head_size, sizeof(float));
  }
}

template <class Cache>
void locate_keys(const Attention& p, const AttentionTile& tile, int64_t begin, int64_t end,
                 KeyBlock<Cache>& block) {
  block.count = min_of<int64_t>(kKeys, end - begin);
  const Cache* key_cache = static_cast<const Cache*>(p.key_cache);
  const Cache* value_cache = static_cast<const Cache*>(p.value_cache);
  const int64_t row_size = cached_row_size(p.head_size, p.has_row_scales);
  const int64_t head = tile.kv_head * p.block_size * row_size;
  int64_t index = begin / p.block_size;
  int64_t slot = begin % p.block_size;
  for (int64_t i = 0; i < kKeys; ++i) {
    if (i >= block.count) {
      block.keys[i] = block.keys[block.count - 1];
      block.values[i] = block.values[block.count - 1];
      continue;
    }
    const int64_t id = tile.blocks[index];
    block.keys[i] = key_cache + id * p.key_block_stride + head + slot * row_size;
    block.values[i] = value_cache + id * p.value_block_stride + head + slot * row_size;
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

// Each word is four neighbouring dimensions. The packed keys have room for whole words.
template <IsCode Code>
inline void store_key_words(float* packed, int64_t word, int64_t, BitsVec words, const Code* type) {
  for (int i = 0; i < 4; ++i) {
    store(packed + (4 * word + i) * kKeys, decode((words >> (8 * i)) & 0xff, type));
  }
}
#if defined(__AVX512BF16__)
template <IsCode Code>
inline void store_key_words(uint32_t* packed, int64_t word, int64_t, BitsVec words,
                            const Code* type) {
  const BitsVec first = (words & 0xff) | (words & 0xff00) << 8;
  const BitsVec second = (words >> 16 & 0xff) | (words >> 8 & 0xff0000);
  store_words(packed + 2 * word * kKeys, decode_pairs(first, type));
  store_words(packed + (2 * word + 1) * kKeys, decode_pairs(second, type));
}
#endif

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

// Makes elements of values, once for all rows: packed [steps, padded head size].
template <class Dot, class Cache>
void pack_values(const KeyBlock<Cache>& block, const KeyBlock<Cache>& next, int64_t head_size,
                 int64_t row_size, typename Dot::Element* packed,
                 const typename Dot::Element* (&rows)[kKeys]) {
  for (int64_t step = 0; step < ceil_divide(block.count, Dot::kKeysPerStep); ++step) {
    for (int i = 0; i < Dot::kKeysPerStep; ++i) {
      prefetch(next.values[step * Dot::kKeysPerStep + i], head_size * sizeof(Cache));
    }
    for_each_vector(head_size, [&](int64_t d, int64_t count) {
      const Vec elements = Dot::load_values(block.values, step, d, count);
      memcpy(packed + d, &elements, sizeof elements);
    });
    rows[step] = packed;
    packed += row_size;
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

}  // namespace
}  // namespace vllm_lite::VLLM_LITE_ISA
