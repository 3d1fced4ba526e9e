// Numbers of a grouped weight as bfloat16, those of two inputs side by side, for bfloat16 rows.
//
// That is exact but for tables of other numbers and sums of books' vectors, which are rounded. Rows of
// x have the same pairs.
#pragma once

#include "cpu/kernels/amx/tiles.h"
#include "cpu/kernels/grouped_codes.h"

// Codes are looked up a word at a time.
#if defined(__AVX512BW__) && (VLLM_LITE_HAS_TILES || defined(__AVX512BF16__))
#define VLLM_LITE_HAS_GROUPED_PAIRS 1
#else
#define VLLM_LITE_HAS_GROUPED_PAIRS 0
#endif

#if VLLM_LITE_HAS_GROUPED_PAIRS

namespace vllm_lite::VLLM_LITE_ISA {

// A weight whose table has bfloat16's numbers.
struct BriefWeight {
  GroupedWeight weight;
  alignas(64) float table[256];

  explicit BriefWeight(const GroupedWeight& w) : weight(w) {
    if (w.code_kind != CodeKind::kTable) return;
    const int size = w.bits == 8 ? 256 : 64;
    for (int i = 0; i < size; i += kLanes) {
      store(table + i, rounded_to(static_cast<const BFloat16*>(nullptr), load(w.table + i)));
    }
    weight.table = table;
  }
  BriefWeight(const BriefWeight&) = delete;
  BriefWeight& operator=(const BriefWeight&) = delete;
};

// How far apart the two inputs of a pair are: each half of a word of codes holds one of them;
// elsewhere they are neighbours.
template <class Codes>
inline constexpr int kPairDistance = 1;
template <>
inline constexpr int kPairDistance<TableCodes<2>> = 8;
template <>
inline constexpr int kPairDistance<TableCodes<3>> = 8;
template <>
inline constexpr int kPairDistance<TableCodes<4>> = 4;
template <>
inline constexpr int kPairDistance<TableCodes<5>> = 4;
template <>
inline constexpr int kPairDistance<TableCodes<6>> = 4;

static inline int pair_distance(const GroupedWeight& w) {
  const bool is_table = w.code_kind == CodeKind::kTable;
  return is_table && w.bits < 4    ? kPairDistance<TableCodes<2>>
         : is_table && w.bits <= 6 ? kPairDistance<TableCodes<4>>
                                   : 1;
}

// Where a row's pairs begin, behind its floats.
static inline int64_t pairs_of_row(const GroupedWeight& w) {
  return wide_row_floats(w) - padded_inputs(w) / 2;
}

// Adds the pairs of its inputs to a row of float32, which are bfloat16's.
static inline void pair_row(const GroupedWeight& w, float* row) {
  const int distance = pair_distance(w);
  alignas(64) uint16_t places[kUnit];
  for (int i = 0; i < kUnit; ++i) {
    places[i] = static_cast<uint16_t>(i / (2 * distance) * 2 * distance + i % 2 * distance +
                                      i % (2 * distance) / 2);
  }
  const __m512i order = _mm512_load_si512(places);
  uint16_t* to = reinterpret_cast<uint16_t*>(row + pairs_of_row(w));
  for (int64_t i = 0; i < padded_inputs(w); i += kUnit) {
    alignas(64) const HalfVec halves[2] = {
        narrow(bit_cast<BitsVec>(load(row + i)) >> 16),
        narrow(bit_cast<BitsVec>(load(row + i + kLanes)) >> 16)};
    _mm512_storeu_si512(to + i, _mm512_permutexvar_epi16(order, _mm512_load_si512(halves)));
  }
}

// A reader makes pairs of a unit for one vector of outputs.
template <class Codes>
struct PairCodes {
  static constexpr float kFactor = Codes::kFactor;
  const Codes& codes;

  explicit PairCodes(const Codes& of) : codes(of) {}

  struct Reader {
    typename Codes::Reader reader;
    __attribute__((always_inline)) BitsVec operator[](int k) const {
      const BitsVec low = bit_cast<BitsVec>(reader[2 * k]);
      const BitsVec high = bit_cast<BitsVec>(reader[2 * k + 1]);
      return (low >> 16) | (high & 0xffff0000u);
    }
  };
  Reader reader(const uint8_t* unit, int v) const { return {codes.reader(unit, v)}; }
};

// Codes of 2 and 4 bits as they lie, two inputs at once. A look-up takes five bits of a word: with two
// bits a code, a table of the upper ones saves every second shift.
template <int kBits>
struct WordPairs {
  static constexpr float kFactor = 1.0f;
  static constexpr int kPairsOfWord = 16 / kBits;
  static constexpr int kTables = kBits == 2 ? 2 : 1;
  __m512i tables[kTables];

  explicit WordPairs(const TableCodes<kBits>& codes) {
    alignas(64) uint16_t numbers[32];
    for (int table = 0; table < kTables; ++table) {
      for (int i = 0; i < 32; ++i) {
        numbers[i] = bit_cast<uint32_t>(codes.from[i >> table * kBits & ((1 << kBits) - 1)]) >> 16;
      }
      tables[table] = _mm512_load_si512(numbers);
    }
  }

  struct Reader {
    __m512i tables[kTables];
    BitsVec words[kBits];  // of the unit
    __attribute__((always_inline)) BitsVec operator[](int k) const {
      const int place = k % kPairsOfWord;
      const BitsVec codes = words[k / kPairsOfWord] >> (place / kTables * kTables * kBits);
      return bit_cast<BitsVec>(
          _mm512_permutexvar_epi16(bit_cast<__m512i>(codes), tables[place % kTables]));
    }
  };
  __attribute__((always_inline)) Reader reader(const uint8_t* unit, int v) const {
    Reader made;
#pragma GCC unroll 2
    for (int table = 0; table < kTables; ++table) made.tables[table] = tables[table];
#pragma GCC unroll 4
    for (int i = 0; i < kBits; ++i) {
      made.words[i] = load_words(unit + (v * kBits + i) * kLine);
      // Not loaded again for each shift: one vector of this size is loaded a cycle.
      asm("" : "+v"(made.words[i]));
    }
    return made;
  }
};
template <>
struct PairCodes<TableCodes<2>> : WordPairs<2> {
  using WordPairs<2>::WordPairs;
};
template <>
struct PairCodes<TableCodes<4>> : WordPairs<4> {
  using WordPairs<4>::WordPairs;
};

// So for 5 and 6 bits, whose planes have the two inputs in the same halves.
template <int kBits>
struct PlanePairs {
  static constexpr float kFactor = 1.0f;
  static constexpr int kLow = 4, kHigh = kBits - kLow;
  __m512i tables[2];

  explicit PlanePairs(const TableCodes<kBits>& codes) {
    alignas(64) uint16_t numbers[64];
    for (int i = 0; i < 64; ++i) {
      numbers[i] = bit_cast<uint32_t>(codes.from[i & ((1 << kBits) - 1)]) >> 16;
    }
    tables[0] = _mm512_load_si512(numbers);
    tables[1] = _mm512_load_si512(numbers + 32);
  }

  struct Reader {
    __m512i tables[2];
    BitsVec low[kLow], high[kHigh];  // of the unit
    __attribute__((always_inline)) BitsVec operator[](int k) const {
      const int shift = k % (16 / kHigh) * kHigh - kLow;
      const BitsVec words = high[k / (16 / kHigh)];
      const BitsVec lower = low[k / 4] >> (k % 4 * kLow);
      const BitsVec upper = shift >= 0 ? words >> shift : words << -shift;
      constexpr uint32_t kMask = 0x000f000f;
      const __m512i places = bit_cast<__m512i>((lower & kMask) | (upper & ~kMask));
      if constexpr (kBits == 5) {
        return bit_cast<BitsVec>(_mm512_permutexvar_epi16(places, tables[0]));
      }
      return bit_cast<BitsVec>(_mm512_permutex2var_epi16(tables[0], places, tables[1]));
    }
  };
  __attribute__((always_inline)) Reader reader(const uint8_t* unit, int v) const {
    Reader made = {{tables[0], tables[1]}, {}, {}};
#pragma GCC unroll 4
    for (int i = 0; i < kLow; ++i) made.low[i] = load_words(unit + (v * kLow + i) * kLine);
#pragma GCC unroll 2
    for (int i = 0; i < kHigh; ++i) {
      made.high[i] = load_words(unit + (2 * kLow + v * kHigh + i) * kLine);
    }
    // Not loaded again for each shift: one vector of this size is loaded a cycle.
    asm("" : "+v"(made.low[0]), "+v"(made.low[1]), "+v"(made.low[2]), "+v"(made.low[3]));
    return made;
  }
};
template <>
struct PairCodes<TableCodes<5>> : PlanePairs<5> {
  using PlanePairs<5>::PlanePairs;
};
template <>
struct PairCodes<TableCodes<6>> : PlanePairs<6> {
  using PlanePairs<6>::PlanePairs;
};

// So for 3 bits.
template <>
struct PairCodes<TableCodes<3>> {
  using Codes = TableCodes<3>;
  static constexpr float kFactor = 1.0f;
  __m512i table;

  explicit PairCodes(const Codes& codes) {
    alignas(64) uint16_t numbers[32];
    for (int i = 0; i < 32; ++i) numbers[i] = bit_cast<uint32_t>(codes.from[i % 8]) >> 16;
    table = _mm512_load_si512(numbers);
  }

  struct Reader {
    __m512i table;
    BitsVec words[Codes::kWords];
    __attribute__((always_inline)) BitsVec operator[](int k) const {
      const BitsVec codes = Codes::codes_of(words, k);
      return bit_cast<BitsVec>(_mm512_permutexvar_epi16(bit_cast<__m512i>(codes), table));
    }
  };
  __attribute__((always_inline)) Reader reader(const uint8_t* unit, int v) const {
    const uint8_t* first = Codes::words_of_unit(unit, v);
    Reader made = {table,
                   {load_words(first), load_words(first + kLine), load_words(first + 2 * kLine)}};
    // Not loaded again for each shift: one vector of this size is loaded a cycle.
    asm("" : "+v"(made.words[0]), "+v"(made.words[1]), "+v"(made.words[2]));
    return made;
  }
};

// Numbers of e4m3, 32 bytes at once: exponents are moved, and the eight that are subnormal looked up.
template <>
struct PairCodes<Float8Codes<true>> {
  static constexpr float kFactor = 1.0f;

  typedef uint16_t Words __attribute__((vector_size(64)));

  explicit PairCodes(const Float8Codes<true>&) {}

  struct Reader {
    const uint8_t* pairs;
    __attribute__((always_inline)) BitsVec operator[](int k) const {
      // k / 512.
      const Words subnormal = {0, 0x3b00, 0x3b80, 0x3bc0, 0x3c00, 0x3c20, 0x3c40, 0x3c60};
      const __m256i line =
          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(pairs + k * 2 * kHalfPanel));
      // Signs are extended, up to where bfloat16 has its own.
      const __m512i bytes = _mm512_cvtepi8_epi16(line);
      const Words normal = (bit_cast<Words>(bytes) << 4 & 0x7f0) + (120 << 7);
      const __mmask32 is_small = _mm512_testn_epi16_mask(bytes, _mm512_set1_epi16(0x78));
      const __m512i numbers = _mm512_mask_permutexvar_epi16(
          bit_cast<__m512i>(normal), is_small, bytes, bit_cast<__m512i>(subnormal));
      constexpr int kOrBoth = 0xf8;  // numbers | (bytes & signs)
      return bit_cast<BitsVec>(_mm512_ternarylogic_epi32(
          numbers, bytes, _mm512_set1_epi16(static_cast<int16_t>(0x8000)), kOrBoth));
    }
  };
  Reader reader(const uint8_t* unit, int v) const { return {bytes_of_unit(unit, v, 2)}; }
};

#if defined(__AVX512BF16__)
// Numbers of brief books: of four vectors, or sums, to a register the words are turned.
template <bool kAreTwo>
struct PairCodes<BookCodes<kAreTwo, true>> {
  static constexpr float kFactor = 1.0f;
  static constexpr int kPairs = BookCodes<kAreTwo, true>::kVector / 2;
  const uint8_t* book;

  explicit PairCodes(const BookCodes<kAreTwo, true>& codes) : book(codes.book) {}

  struct Reader {
    const uint8_t* book;
    const uint8_t* codes;
    mutable __m512i pairs[kPairs];

    __attribute__((always_inline)) BitsVec operator[](int k) const {
      if (k % kPairs == 0) make(codes + k / kPairs * kPanel * 2);
      return bit_cast<BitsVec>(pairs[k % kPairs]);
    }

   private:
    __m128i load_vector(int64_t index) const {
      return _mm_loadu_si128(reinterpret_cast<const __m128i*>(book + index * 4 * kPairs));
    }
    static __m256 to_eight(__m128i numbers) {
      return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(numbers), 16));
    }
    __attribute__((always_inline)) void make(const uint8_t* from) const {
      __m512i rows[4];
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) {
        const auto vector = [&](int lane) {
          uint16_t index;
          memcpy(&index, from + 2 * (4 * lane + j), sizeof index);
          if constexpr (!kAreTwo) return load_vector(index);
          const __m256 sum = _mm256_add_ps(to_eight(load_vector(index & 255)),
                                           to_eight(load_vector(256 + (index >> 8))));
          return bit_cast<__m128i>(_mm256_cvtneps_pbh(sum));
        };
        rows[j] = _mm512_inserti32x4(_mm512_castsi128_si512(vector(0)), vector(1), 1);
        rows[j] = _mm512_inserti32x4(_mm512_inserti32x4(rows[j], vector(2), 2), vector(3), 3);
      }
      const __m512i low[2] = {_mm512_maskz_unpacklo_epi32(0xffff, rows[0], rows[1]),
                              _mm512_maskz_unpacklo_epi32(0xffff, rows[2], rows[3])};
      const __m512i high[2] = {_mm512_maskz_unpackhi_epi32(0xffff, rows[0], rows[1]),
                               _mm512_maskz_unpackhi_epi32(0xffff, rows[2], rows[3])};
      pairs[0] = _mm512_maskz_unpacklo_epi64(0xff, low[0], low[1]);
      pairs[1] = _mm512_maskz_unpackhi_epi64(0xff, low[0], low[1]);
      pairs[2] = _mm512_maskz_unpacklo_epi64(0xff, high[0], high[1]);
      pairs[3] = _mm512_maskz_unpackhi_epi64(0xff, high[0], high[1]);
    }
  };
  Reader reader(const uint8_t* unit, int v) const { return {book, unit + v * kLanes * 2, {}}; }
};
#endif

// Whether a weight's bytes are multiplied by bytes of x, four inputs at once.
static inline bool has_quads(const GroupedWeight& w) {
  return !VLLM_LITE_HAS_TILES && w.code_kind == CodeKind::kInt8;
}
static inline bool are_quads(const RowRounding& rounding, const GroupedWeight& w) {
  const bool are_bytes = rounding.number == DType::kInt8 && !rounding.is_shifted;
  return rounding.group_size > 0 && are_bytes && has_quads(w);
}

// Bytes of four inputs side by side, 128 more than the codes: -128 times a segment's sum of x, its
// excess, is what sums begin with.
struct QuadCodes {
  static constexpr float kFactor = 1.0f;

  struct Reader {
    const uint8_t* bytes;
    __attribute__((always_inline)) BitsVec operator[](int i) const {
      // Rows of 16 outputs: words of the same four outputs side by side, then their bytes.
      const __m512i words = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
      const __m512i order = _mm512_broadcast_i32x4(
          _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
      const __m512i rows = _mm512_loadu_si512(bytes + i * 4 * kHalfPanel);
      const __m512i quads = _mm512_shuffle_epi8(_mm512_permutexvar_epi32(words, rows), order);
      return bit_cast<BitsVec>(_mm512_xor_si512(quads, _mm512_set1_epi8(-128)));
    }
  };
  Reader reader(const uint8_t* unit, int v) const { return {bytes_of_unit(unit, v, 1)}; }
};

// Writes a row's codes of int8 as bytes, and the excess of its segments.
static inline void quad_row(const GroupedWeight& w, float* row) {
  int8_t* bytes = reinterpret_cast<int8_t*>(row + pairs_of_row(w));
  int32_t* excess = reinterpret_cast<int32_t*>(row + pairs_of_row(w) + padded_inputs(w) / 4);
  for (int64_t i = 0; i < padded_inputs(w); i += kLanes) {
    const __m512i codes = _mm512_cvtps_epi32(_mm512_loadu_ps(row + i));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(bytes + i), _mm512_cvtepi32_epi8(codes));
  }
  for (int64_t first = 0; first < w.num_inputs; ++excess) {
    const int64_t end = segment_end(w, first);
    Vec sum = {};
    for (; first < end; first += kLanes) sum += load(row + first);
    *excess = -128 * static_cast<int32_t>(reduce_add(sum));
  }
}

}  // namespace vllm_lite::VLLM_LITE_ISA

#endif
