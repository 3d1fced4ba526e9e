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
  if constexpr (!Block::kIsTwoLevel) {
    to.scale = load_halves(group + first * 2);
    if (Block::kHasMinimum) to.minimum = -load_halves(group + (kPanel + first) * 2);
  } else {
    IntVec factor, subtracted = {};
    if constexpr (Layout::kHasNibbles) {
      const IntVec both = load_bytes<uint8_t>(group + part * kPanel + first);
      factor = both & 15;
      subtracted = both >> 4;
    } else if constexpr (Layout::kParts == 2) {
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

static inline CodeVec look_up(const uint8_t (&table)[16], CodeVec indices) {
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
#else
  CodeVec found;
  for (int i = 0; i < kLanes * 4; ++i) found[i] = table[indices[i]];
  return found;
#endif
}

// A group's codes for vector `v`, a line at a time; `planes` are its low planes.
template <class Block>
class Codes {
 public:
  Codes(const uint8_t* planes, int v) {
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
    if constexpr (__is_same(Block, BlockIQ4_NL)) return look_up(kNonLinearCodes, bytes);
    return bytes;
  }

 private:
  using Layout = Packed<Block>;
  static constexpr int kLow = Block::kLowBits, kHigh = Block::kHighBits;
  BitsVec low_[kLow], high_[kHigh > 0 ? kHigh : 1];
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
      const Codes<Block> codes(group + Layout::kScaleBytes, v);
#pragma GCC unroll 8
      for (int i = 0; i < kGroupLines; ++i) to.codes[g * kGroupLines + i][v] = codes.line(i);
    }
  }
}

}  // namespace vllm_lite::VLLM_LITE_ISA
