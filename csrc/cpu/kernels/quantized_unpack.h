// Chunks of packed panels as vectors: codes to multiply, scales and minima in float32.
#pragma once

#include "cpu/kernels/packed_blocks.h"

namespace vllm_lite::VLLM_LITE_ISA {

constexpr int kPanelVectors = static_cast<int>(kPanel) / kLanes;
constexpr int kChunkParts = 2 * kChunkGroups;

typedef uint8_t CodeVec __attribute__((vector_size(kLanes * 4)));

// A value is scale * (code - Block::kOffset) - minimum; minima are set only if the format has
// them. Scales are in the order of parts: one or two for a group. The
// second index is the vector of kLanes outputs.
struct Chunk {
  CodeVec codes[kChunkGroups * kGroupLines][kPanelVectors];
  Vec scales[kChunkParts][kPanelVectors];
  Vec minima[kChunkParts][kPanelVectors];
};

static inline Vec load_halves(const uint8_t* from) {
#if defined(__AVX512F__)
  __m256i halves;
  memcpy(&halves, from, sizeof halves);
  return _mm512_maskz_cvtph_ps(0xffff, halves);
#elif defined(__F16C__)
  __m128i halves;
  memcpy(&halves, from, sizeof halves);
  return _mm256_cvtph_ps(halves);
#elif defined(__aarch64__)
  HalfVec halves;
  memcpy(&halves, from, sizeof halves);
  return vcvt_f32_f16(bit_cast<float16x4_t>(halves));
#else
  Vec v;
  for (int i = 0; i < kLanes; ++i) v[i] = half_to_float(from + 2 * i);
  return v;
#endif
}

// Byte is uint8_t or int8_t. Compilers take bytes apart one by one for __builtin_convertvector.
template <class Byte>
static inline IntVec load_bytes(const uint8_t* from) {
  [[maybe_unused]] constexpr bool kIsSigned = __is_same(Byte, int8_t);
#if defined(__AVX512F__)
  __m128i bytes;
  memcpy(&bytes, from, sizeof bytes);
  return bit_cast<IntVec>(kIsSigned ? _mm512_maskz_cvtepi8_epi32(0xffff, bytes)
                                    : _mm512_maskz_cvtepu8_epi32(0xffff, bytes));
#elif defined(__AVX2__)
  const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from));
  return bit_cast<IntVec>(kIsSigned ? _mm256_cvtepi8_epi32(bytes) : _mm256_cvtepu8_epi32(bytes));
#elif defined(__aarch64__)
  uint32_t bytes;
  memcpy(&bytes, from, sizeof bytes);
  const uint64_t wide = bytes;
  if constexpr (kIsSigned) {
    return bit_cast<IntVec>(vmovl_s16(vget_low_s16(vmovl_s8(bit_cast<int8x8_t>(wide)))));
  } else {
    return bit_cast<IntVec>(vmovl_u16(vget_low_u16(vmovl_u8(bit_cast<uint8x8_t>(wide)))));
  }
#else
  typedef Byte Bytes __attribute__((vector_size(kLanes)));
  Bytes bytes;
  memcpy(&bytes, from, sizeof bytes);
  return __builtin_convertvector(bytes, IntVec);
#endif
}
static inline Vec to_floats(IntVec integers) { return __builtin_convertvector(integers, Vec); }

// Offset of vector `v` in a line of a half panel's codes.
static inline int line_offset(int v) { return v * kLanes % kHalfPanel * 4; }
static inline int half_of(int v) { return v * kLanes / kHalfPanel; }

// Scale and minimum of a part for a vector of outputs.
struct Scales {
  Vec scale;
  Vec minimum;
};

template <class Block>
static inline Scales load_scales(const uint8_t* header, const uint8_t* group, int v, int part) {
  using Layout = Packed<Block>;
  const int first = v * kLanes;
  Scales to = {};
  if constexpr (Block::kScales == PartScales::kPowersOf2) {
    const BitsVec bytes = bit_cast<BitsVec>(load_bytes<uint8_t>(group + first));
    to.scale = bit_cast<Vec>(bytes < 2 ? (BitsVec{} + 0x00200000u) << bytes : (bytes - 1) << 23);
  } else if constexpr (Block::kScales == PartScales::kFloat8) {
    const IntVec bytes = load_bytes<uint8_t>(group + part * kPanel + first);
    to.scale = bit_cast<Vec>(bytes << 20) * 0x1p119f;
  } else if constexpr (Block::kScales == PartScales::kNone) {
    to.scale = load_halves(header + first * 2);
  } else if constexpr (Block::kIsBook) {
    IntVec odd;
    if constexpr (Block::kScales == PartScales::kOdd) {
      odd = load_bytes<uint8_t>(group + first) >> 4 * part & 15;
    } else {
      const uint8_t* above = group + Block::kEntries * kPanel + first;
      const IntVec low = load_bytes<uint8_t>(above), high = load_bytes<uint8_t>(above + kPanel);
      odd = (low >> 3 & 1) | (low >> 6 & 2) | (high >> 1 & 4);
    }
    to.scale = load_halves(header + first * 2) * to_floats(2 * odd + 1) * Block::kStep;
  } else if constexpr (!Block::kIsTwoLevel) {
    to.scale = load_halves(group + first * 2);
    if (Block::kHasMinimum) to.minimum = -load_halves(group + (kPanel + first) * 2);
  } else {
    IntVec factor, subtracted = {};
    if constexpr (Layout::kHasNibbles) {
      const IntVec both = load_bytes<uint8_t>(group + part * kPanel + first);
      factor = both & 15;
      subtracted = both >> 4;
    } else if constexpr (!Block::kHasMinimum) {
      factor = load_bytes<int8_t>(group + part * kPanel + first);
    } else {
      factor = load_bytes<uint8_t>(group + first);
      subtracted = load_bytes<uint8_t>(group + kPanel + first);
    }
    to.scale = load_halves(header + first * 2) * to_floats(factor);
    if (Block::kHasMinimum) {
      to.minimum = load_halves(header + (kPanel + first) * 2) * to_floats(subtracted);
    }
  }
  return to;
}

// Bytes shifted right by `shift` bits (left where it is negative), within 32-bit lanes.
static inline BitsVec shifted(BitsVec bits, int shift) {
  return shift >= 0 ? bits >> shift : bits << -shift;
}
static inline BitsVec byte_mask(int mask) { return BitsVec{} + 0x01010101u * mask; }

static inline CodeVec look_up(const uint8_t* table, CodeVec indices) {
#if defined(__AVX512BW__)
  __m128i entries;
  memcpy(&entries, table, sizeof entries);
  return bit_cast<CodeVec>(_mm512_shuffle_epi8(_mm512_maskz_broadcast_i32x4(0xffff, entries),
                                               bit_cast<__m512i>(indices)));
#elif defined(__AVX2__)
  __m128i entries;
  memcpy(&entries, table, sizeof entries);
  return bit_cast<CodeVec>(
      _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(entries), bit_cast<__m256i>(indices)));
#elif defined(__aarch64__)
  return bit_cast<CodeVec>(vqtbl1q_u8(vld1q_u8(table), bit_cast<uint8x16_t>(indices)));
#else
  CodeVec found;
  for (int i = 0; i < kLanes * 4; ++i) found[i] = table[indices[i]];
  return found;
#endif
}

static inline BitsVec look_up_words(const uint32_t* book, BitsVec indices) {
#if defined(__AVX512F__)
  return bit_cast<BitsVec>(_mm512_mask_i32gather_epi32(__m512i{}, 0xffff,
                                                       bit_cast<__m512i>(indices), book, 4));
#elif defined(__AVX2__)
  return bit_cast<BitsVec>(_mm256_i32gather_epi32(reinterpret_cast<const int*>(book),
                                                  bit_cast<__m256i>(indices), 4));
#else
  BitsVec found;
  for (int i = 0; i < kLanes; ++i) found[i] = book[indices[i]];
  return found;
#endif
}

// Both words of vectors of eight.
static inline void look_up_pairs(const uint32_t* book, BitsVec indices, BitsVec (&words)[2]) {
#if defined(__AVX512F__)
  const __m512i lanes = bit_cast<__m512i>(indices), none = {};
  const __m512i low = _mm512_mask_i32gather_epi64(
      none, 0xff, _mm512_maskz_extracti64x4_epi64(0xff, lanes, 0), book, 8);
  const __m512i high = _mm512_mask_i32gather_epi64(
      none, 0xff, _mm512_maskz_extracti64x4_epi64(0xff, lanes, 1), book, 8);
  const __m512i even = _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
  words[0] = bit_cast<BitsVec>(_mm512_permutex2var_epi32(low, even, high));
  words[1] = bit_cast<BitsVec>(_mm512_permutex2var_epi32(
      low, _mm512_or_si512(even, _mm512_set1_epi32(1)), high));
#elif defined(__AVX2__)
  // Lanes 0, 1, 4 and 5 before the others, so that a shuffle puts all in order.
  const __m256i lanes = _mm256_permute4x64_epi64(bit_cast<__m256i>(indices), 0xd8);
  const auto gather = [&](__m128i places) {
    const long long* from = reinterpret_cast<const long long*>(book);
    return _mm256_castsi256_ps(_mm256_i32gather_epi64(from, places, 8));
  };
  const __m256 first = gather(_mm256_castsi256_si128(lanes));
  const __m256 second = gather(_mm256_extracti128_si256(lanes, 1));
  words[0] = bit_cast<BitsVec>(_mm256_shuffle_ps(first, second, 0x88));
  words[1] = bit_cast<BitsVec>(_mm256_shuffle_ps(first, second, 0xdd));
#else
  for (int i = 0; i < 2; ++i) words[i] = look_up_words(book, indices * 2 + i);
#endif
}

// A group's codes for vector `v`, a line at a time. `group` is number `g` of the chunk that begins at
// `header`.
template <class Block>
class Codes {
 public:
  Codes(const uint8_t*, const uint8_t* group, int, int v) {
    const uint8_t* planes = group + Layout::kScaleBytes;
    const uint8_t* low = planes + half_of(v) * Layout::kLowBytes + line_offset(v);
#pragma GCC unroll 8
    for (int i = 0; i < kLow; ++i) memcpy(&low_[i], low + i * kLine, sizeof low_[i]);
    const uint8_t* high =
        planes + 2 * Layout::kLowBytes + half_of(v) * Layout::kHighBytes + line_offset(v);
#pragma GCC unroll 2
    for (int i = 0; i < kHigh; ++i) memcpy(&high_[i], high + i * kLine, sizeof high_[i]);
  }

  CodeVec line(int i) const {
    BitsVec codes = low_[i % kLow];
    if (kLow < 8) codes = shifted(codes, i / kLow * kLow) & byte_mask((1 << kLow) - 1);
    if constexpr (kHigh > 0) {
      codes |= shifted(high_[i % kHigh], i / kHigh * kHigh - kLow) &
               byte_mask(((1 << kHigh) - 1) << kLow);
    }
    const CodeVec bytes = bit_cast<CodeVec>(codes);
    if constexpr (Block::kHasTable) return look_up(Block::kTable, bytes);
    return bytes;
  }

 private:
  using Layout = Packed<Block>;
  static constexpr int kLow = Block::kLowBits, kHigh = Block::kHighBits;
  BitsVec low_[kLow], high_[kHigh > 0 ? kHigh : 1];
};

// Of books: words of four codes are looked up, for lines in order.
template <class Block>
  requires(Block::kIsBook)
class Codes<Block> {
 public:
  Codes(const uint8_t*, const uint8_t* group, int, int v)
      : rows_(group + Packed<Block>::kScaleBytes + v * kLanes) {}

  CodeVec line(int i) const {
    constexpr int kAbove = Block::kAbove, kLines = Block::kVector / 4;
    if (i % kLines == 0) look_up(i / kLines);
    const BitsVec words = words_[i % kLines];
    if constexpr (!Block::kIsSigned) {
      return bit_cast<CodeVec>(words + added_);
    } else {
      constexpr int kHighRows = (Block::kEntries * kAbove + 7) / 8;
      const BitsVec signs = row(Block::kEntries + kHighRows + i / 2) * 0x01010101u;
      const CodeVec masks = bit_cast<CodeVec>(BitsVec{} + (i % 2 == 0 ? 0x08040201u : 0x80402010u));
      const CodeVec negative = bit_cast<CodeVec>((bit_cast<CodeVec>(signs) & masks) == masks);
      return (bit_cast<CodeVec>(words) ^ negative) + (negative & (2 * Block::kOffset + 1));
    }
  }

 private:
  BitsVec row(int i) const { return bit_cast<BitsVec>(load_bytes<uint8_t>(rows_ + i * kPanel)); }

  void look_up(int k) const {
    constexpr int kAbove = Block::kAbove;
    BitsVec entries = row(k);
    if constexpr (kAbove > 0) {
      const BitsVec above = row(Block::kEntries + k * kAbove / 8) >> k * kAbove % 8;
      entries |= (above & ((1u << kAbove) - 1)) << 8;
    }
    if constexpr (!Block::kIsSigned) {
      BitsVec takes = entries >> 11;
      if constexpr (Block::kScales == PartScales::kOddInCodes) takes = row(Block::kEntries + 1) >> 7;
      added_ = 0x01010101u - takes * 0x02020202u;
      entries &= 2047;
    }
    if constexpr (Block::kVector == 8) {
      look_up_pairs(Block::book(), entries, words_);
    } else {
      words_[0] = look_up_words(Block::book(), entries);
    }
  }

  const uint8_t* rows_;
  mutable BitsVec words_[2], added_;
};

// Of base 3.
template <>
class Codes<BlockTQ1_0> {
 public:
  Codes(const uint8_t* header, const uint8_t*, int g, int v)
      : first_(g * kGroupLines),
        lines_(header + Packed<BlockTQ1_0>::kHalvesBytes + half_of(v) * kTernaryLines * kLine +
               line_offset(v)) {}

  CodeVec line(int i) const {
    typedef uint16_t Pairs __attribute__((vector_size(kLanes * 4)));
    constexpr uint16_t kPowers[5] = {1, 3, 9, 27, 81};
    const int line = first_ + i;
    const uint16_t power = kPowers[line % 5];
    Pairs bytes;
    memcpy(&bytes, lines_ + line / 5 * kLine, sizeof bytes);
    const Pairs even = (bytes * power & 0xff) * 3 >> 8, odd = ((bytes >> 8) * power & 0xff) * 3;
    return bit_cast<CodeVec>(even | (odd & 0xff00));
  }

 private:
  int first_;
  const uint8_t* lines_;
};

// Unpacks vectors [begin_vector, end_vector) of the first num_groups groups of a chunk.
template <class Block>
static void unpack_chunk(const uint8_t* from, int num_groups, int begin_vector, int end_vector,
                         Chunk& to) {
  using Layout = Packed<Block>;
  const uint8_t* group = from + Layout::kHeaderBytes;
  for (int g = 0; g < num_groups; ++g, group += Layout::kGroupBytes) {
    // The hardware's own prefetcher stops where a page ends.
    for (int i = 0; i < Layout::kGroupBytes; i += kLine) __builtin_prefetch(group + 8192 + i);
    for (int v = begin_vector; v < end_vector; ++v) {
      for (int part = 0; part < Layout::kParts; ++part) {
        const Scales scales = load_scales<Block>(from, group, v, part);
        to.scales[2 * g + part][v] = scales.scale;
        if (Block::kHasMinimum) to.minima[2 * g + part][v] = scales.minimum;
      }
      const Codes<Block> codes(from, group, g, v);
#pragma GCC unroll 8
      for (int i = 0; i < kGroupLines; ++i) to.codes[g * kGroupLines + i][v] = codes.line(i);
    }
  }
}

}  // namespace vllm_lite::VLLM_LITE_ISA
