// The layout of grouped weights, and their codes and scales as vectors.
//
// A panel is kPanel outputs; its inputs come in units of 32, in order. Codes below 8 bits lie in a
// low plane (2 or 4 bits) and a high one (the rest). In a plane of b bits each half panel has b lines
// of 64 bytes: a word for each of its 16 outputs, which holds 32 / b inputs, lowest bits first; in a
// high plane the first four of every eight inputs are in its lower half, the others in its upper one.
// Integers of 8 bits, and those of a table, are bytes: of each input, 16 outputs side by side; those
// of float8 are bytes of inputs 2i and 2i + 1 alternately. Codes of books have 16 bits, or 8 of each
// of two: of every eight inputs, a panel's outputs side by side.
#pragma once

#include "cpu/kernels/quantized_unpack.h"

namespace vllm_lite::VLLM_LITE_ISA {

constexpr int kUnit = static_cast<int>(kCodesOfUnit);
// Prefetch distances in bytes: into the second cache, and from there into the first.
constexpr int64_t kFarAhead = 8192, kNearAhead = 1024;

static inline int64_t grouped_panel_bytes(const GroupedWeight& w) {
  return padded_inputs(w) * kPanel * w.bits / 8;
}

// Inputs of a step on tiles, all of one group.
static inline int64_t step_of(const GroupedWeight& w) {
  return w.group_size >= w.num_inputs || w.group_size % kUnit == 0 ? kUnit : kUnit / 2;
}

// The numbers of a table of up to 64: codes may have other bits above their own.
template <int kBits>
struct NumberTable {
#if defined(__AVX512F__)
  static constexpr int kVectors = kBits > 4 ? 1 << (kBits - 4) : 1;
  Vec numbers[kVectors];

  explicit NumberTable(const float* from) {
    for (int i = 0; i < kVectors; ++i) numbers[i] = load(from + i * kLanes);
  }
  Vec operator[](BitsVec codes) const {
    const __m512i places = bit_cast<__m512i>(codes);
    if constexpr (kVectors == 1) {
      return _mm512_maskz_permutexvar_ps(0xffff, places, numbers[0]);
    } else {
      const Vec low = _mm512_permutex2var_ps(numbers[0], places, numbers[1]);
      if constexpr (kVectors == 2) return low;
      const Vec high = _mm512_permutex2var_ps(numbers[kVectors - 2], places, numbers[kVectors - 1]);
      return _mm512_mask_blend_ps(_mm512_test_epi32_mask(places, _mm512_set1_epi32(32)), low, high);
    }
  }
#elif defined(__AVX2__)
  const float* from;
  Vec low, high;

  explicit NumberTable(const float* table)
      : from(table), low(load(table)), high(load(table + kLanes)) {}
  Vec operator[](BitsVec codes) const {
    const __m256i places = bit_cast<__m256i>(codes);
    if constexpr (kBits > 4) {
      const BitsVec bounded = codes & ((1u << kBits) - 1);
      return _mm256_i32gather_ps(from, bit_cast<__m256i>(bounded), 4);
    } else {
      const Vec first = _mm256_permutevar8x32_ps(low, places);
      if constexpr (kBits < 4) return first;
      return _mm256_blendv_ps(first, _mm256_permutevar8x32_ps(high, places),
                              bit_cast<__m256>(codes << 28));
    }
  }
#else
  const float* from;

  explicit NumberTable(const float* table) : from(table) {}
  Vec operator[](BitsVec codes) const {
    Vec numbers;
    for (int i = 0; i < kLanes; ++i) numbers[i] = from[codes[i] & ((1u << kBits) - 1)];
    return numbers;
  }
#endif
};

static inline BitsVec load_words(const uint8_t* from) {
  BitsVec words;
  memcpy(&words, from, sizeof words);
  return words;
}

// Codes of a unit for one vector of outputs, with other bits above them.
template <int kBits>
struct CodeReader {
  static constexpr int kLow = kBits == 2 ? 2 : 4, kHigh = kBits - kLow;
  const uint8_t* low;
  const uint8_t* high;

  CodeReader(const uint8_t* unit, int v) {
    const int half = v * kLanes / kHalfPanel;
    const uint8_t* first = unit + line_offset(v);
    low = first + half * kLow * kLine;
    high = first + (2 * kLow + half * kHigh) * kLine;
  }
  // Code i, known when this is compiled.
  __attribute__((always_inline)) BitsVec operator[](int i) const {
    // Words from a byte on: loads are free where shifts are not.
    const uint8_t* words = low + i * kLow / 32 * kLine + i * kLow % 32 / 8;
    const BitsVec codes = load_words(words) >> (i * kLow % 8);
    if constexpr (kHigh == 0) return codes;
    constexpr int kOfHigh = kHigh > 0 ? kHigh : 1;
    const BitsVec above = load_words(high + i * kOfHigh / 32 * kLine);
    const int shift = i % 8 / 4 * 16 + (i % (32 / kOfHigh) / 8 * 4 + i % 4) * kOfHigh - kLow;
    const BitsVec moved = shift >= 0 ? above >> shift : above << -shift;
    constexpr uint32_t kMask = (1u << kLow) - 1;
    return (codes & kMask) | (moved & ~kMask);
  }
};

// Codes of less than 8 bits. A reader makes numbers of a unit for one vector of outputs.
template <int kBits>
struct TableCodes {
  static constexpr float kFactor = 1.0f;
  NumberTable<kBits> table;
  const float* from;

  explicit TableCodes(const GroupedWeight& w) : table(w.table), from(w.table) {}

  struct Reader {
    const NumberTable<kBits>& table;
    CodeReader<kBits> codes;
    __attribute__((always_inline)) Vec operator[](int i) const { return table[codes[i]]; }
  };
  Reader reader(const uint8_t* unit, int v) const { return {table, {unit, v}}; }
};

// Codes of 3 bits: three words hold 16 pairs, of inputs 8 apart, in their lower and upper halves. Each
// half has five codes; its upper bit is one of the last pair's code.
template <>
struct TableCodes<3> {
  static constexpr float kFactor = 1.0f;
  static constexpr int kWords = 3, kPairsOfWord = 5;
  NumberTable<3> table;
  const float* from;

  explicit TableCodes(const GroupedWeight& w) : table(w.table), from(w.table) {}

  // Of a pair, in both halves; there are other bits above the code.
  static BitsVec codes_of(const BitsVec (&words)[kWords], int pair) {
    if (pair < kWords * kPairsOfWord) return words[pair / kPairsOfWord] >> pair % kPairsOfWord * 3;
    constexpr uint32_t kFirst = 0x00010001, kSecond = 0x00020002;
    const BitsVec lower = ((words[0] >> 15) & kFirst) | ((words[1] >> 14) & ~kFirst);
    return (lower & (kFirst | kSecond)) | ((words[2] >> 13) & ~(kFirst | kSecond));
  }

  struct Reader {
    const NumberTable<3>& table;
    BitsVec words[kWords];

    // Number i, known when this is compiled.
    __attribute__((always_inline)) Vec operator[](int i) const {
      return table[codes_of(words, i / 16 * 8 + i % 8) >> i / 8 % 2 * 16];
    }
  };
  Reader reader(const uint8_t* unit, int v) const {
    const uint8_t* first = words_of_unit(unit, v);
    return {table, {load_words(first), load_words(first + kLine), load_words(first + 2 * kLine)}};
  }
  static const uint8_t* words_of_unit(const uint8_t* unit, int v) {
    return unit + line_offset(v) + v * kLanes / kHalfPanel * kWords * kLine;
  }
};

// The first byte of a unit's codes of 8 bits for vector `v`, of rows of 16 outputs.
static inline const uint8_t* bytes_of_unit(const uint8_t* unit, int v, int bytes_of_code) {
  return unit + v * kLanes / kHalfPanel * kHalfPanel * kUnit +
         v * kLanes % kHalfPanel * bytes_of_code;
}

struct Int8Codes {
  static constexpr float kFactor = 1.0f;
  explicit Int8Codes(const GroupedWeight&) {}

  struct Reader {
    const uint8_t* bytes;
    __attribute__((always_inline)) Vec operator[](int i) const {
      return to_floats(load_bytes<int8_t>(bytes + i * kHalfPanel));
    }
  };
  Reader reader(const uint8_t* unit, int v) const { return {bytes_of_unit(unit, v, 1)}; }
};

// Any 256 numbers.
struct ByteCodes {
  static constexpr float kFactor = 1.0f;
  const float* table;
  explicit ByteCodes(const GroupedWeight& w) : table(w.table) {}

  struct Reader {
    const float* table;
    const uint8_t* bytes;
    Vec operator[](int i) const {
      Vec numbers;
      for (int k = 0; k < kLanes; ++k) numbers[k] = table[bytes[i * kHalfPanel + k]];
      return numbers;
    }
  };
  Reader reader(const uint8_t* unit, int v) const { return {table, bytes_of_unit(unit, v, 1)}; }
};

static inline Vec halves_to_floats(HalfVec bits) {
  return load_halves(reinterpret_cast<const uint8_t*>(&bits));
}
// Upper bytes as float8, e4m3 less a factor of 256; its NaN is another number.
template <bool kIsE4M3>
static inline Vec float8_numbers(HalfVec upper) {
  if constexpr (kIsE4M3) {
    typedef int16_t Signed __attribute__((vector_size(sizeof(HalfVec))));
    upper = bit_cast<HalfVec>(bit_cast<Signed>(upper) >> 1) & 0xbf80;
  }
  return halves_to_floats(upper);
}

template <bool kIsE4M3>
struct Float8Codes {
  static constexpr float kFactor = kIsE4M3 ? 256.0f : 1.0f;
  explicit Float8Codes(const GroupedWeight&) {}

  struct Reader {
    const uint8_t* pairs;
    __attribute__((always_inline)) Vec operator[](int i) const {
      HalfVec both;
      memcpy(&both, pairs + i / 2 * 2 * kHalfPanel, sizeof both);
      return float8_numbers<kIsE4M3>(i % 2 == 0 ? both << 8 : both & 0xff00);
    }
  };
  Reader reader(const uint8_t* unit, int v) const { return {bytes_of_unit(unit, v, 2)}; }
};

#if defined(__AVX2__)
// Rows [8][8] to columns.
static inline void transpose(__m256 (&rows)[8]) {
  __m256 pairs[8], fours[8];
#pragma GCC unroll 4
  for (int i = 0; i < 8; i += 2) {
    pairs[i] = _mm256_unpacklo_ps(rows[i], rows[i + 1]);
    pairs[i + 1] = _mm256_unpackhi_ps(rows[i], rows[i + 1]);
  }
#pragma GCC unroll 2
  for (int i = 0; i < 8; i += 4) {
    fours[i] = _mm256_shuffle_ps(pairs[i], pairs[i + 2], 0x44);
    fours[i + 1] = _mm256_shuffle_ps(pairs[i], pairs[i + 2], 0xee);
    fours[i + 2] = _mm256_shuffle_ps(pairs[i + 1], pairs[i + 3], 0x44);
    fours[i + 3] = _mm256_shuffle_ps(pairs[i + 1], pairs[i + 3], 0xee);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    rows[i] = _mm256_permute2f128_ps(fours[i], fours[i + 4], 0x20);
    rows[i + 4] = _mm256_permute2f128_ps(fours[i], fours[i + 4], 0x31);
  }
}
#endif

#if defined(__AVX512BW__)
// Where words of two registers of four rows of eight go, so that each lane has an input of eight rows;
// and lanes of two such, so that eight rows are followed by the eight after them.
struct Turns {
  alignas(64) uint16_t words[2][32] = {};
  alignas(64) uint64_t lanes[2][8] = {{0, 1, 8, 9, 2, 3, 10, 11}, {4, 5, 12, 13, 6, 7, 14, 15}};
  constexpr Turns() {
    for (int half = 0; half < 2; ++half) {
      for (int i = 0; i < 32; ++i) words[half][i] = static_cast<uint16_t>(i % 8 * 8 + i / 8 + 4 * half);
    }
  }
};
#endif

// Numbers of a book of 65,536 vectors, or sums of those of two of 256; brief ones are bfloat16.
template <bool kAreTwo, bool kIsBrief>
struct BookCodes {
  static constexpr float kFactor = 1.0f;
  static constexpr int kVector = 8;
  const uint8_t* book;
  explicit BookCodes(const GroupedWeight& w) : book(reinterpret_cast<const uint8_t*>(w.table)) {}

  // Numbers of eight inputs are made together: of one multiple of eight, then of those that follow.
  struct Reader {
    const uint8_t* book;
    const uint8_t* codes;
    mutable Vec numbers[kVector];

    __attribute__((always_inline)) Vec operator[](int i) const {
      if (i % kVector == 0) make(codes + i / kVector * kPanel * 2);
      return numbers[i % kVector];
    }

   private:
#if defined(__AVX512BW__)
    // Sixteen vectors of one book, turned: words of rows four to a register, then lanes of eight rows.
    __attribute__((always_inline)) void make_of_one(const uint8_t* from) const {
      static constexpr Turns kTurns;
      __m512i rows[4];
#pragma GCC unroll 4
      for (int q = 0; q < 4; ++q) {
        const auto row = [&](int k) {
          const uint8_t* at = vector(from + 2 * (4 * q + k), false);
          return _mm_loadu_si128(reinterpret_cast<const __m128i*>(at));
        };
        rows[q] = _mm512_inserti32x4(_mm512_castsi128_si512(row(0)), row(1), 1);
        rows[q] = _mm512_inserti32x4(_mm512_inserti32x4(rows[q], row(2), 2), row(3), 3);
      }
#pragma GCC unroll 2
      for (int half = 0; half < 2; ++half) {
        const __m512i words = _mm512_load_si512(kTurns.words[half]);
        const __m512i lower = _mm512_permutex2var_epi16(rows[0], words, rows[1]);
        const __m512i upper = _mm512_permutex2var_epi16(rows[2], words, rows[3]);
#pragma GCC unroll 2
        for (int pair = 0; pair < 2; ++pair) {
          const __m512i lanes = _mm512_load_si512(kTurns.lanes[pair]);
          const __m512i both = _mm512_permutex2var_epi64(lower, lanes, upper);
          Vec* const two = numbers + 4 * half + 2 * pair;
          const auto first = __builtin_shufflevector(both, both, 0, 1, 2, 3);
          const auto second = __builtin_shufflevector(both, both, 4, 5, 6, 7);
          two[0] = floats_of(bit_cast<__m256i>(first));
          two[1] = floats_of(bit_cast<__m256i>(second));
        }
      }
    }
#endif
#if defined(__AVX512BW__)
    static Vec floats_of(__m256i numbers) {
      if constexpr (kIsBrief) {
        return bit_cast<Vec>(bit_cast<BitsVec>(_mm512_maskz_cvtepu16_epi32(0xffff, numbers)) << 16);
      }
      return _mm512_maskz_cvtph_ps(0xffff, numbers);
    }
#endif
    const uint8_t* vector(const uint8_t* code, bool is_second) const {
      uint16_t index;
      memcpy(&index, code, sizeof index);
      if (kAreTwo) index = static_cast<uint16_t>(is_second ? 256 + (index >> 8) : index & 255);
      return book + int64_t{index} * kVector * 2;
    }
    void make(const uint8_t* from) const {
#if defined(__AVX512BW__)
      if constexpr (!kAreTwo) return make_of_one(from);
#endif
#if defined(__AVX2__)
      float* to = reinterpret_cast<float*>(numbers);
      for (int first = 0; first < kLanes; first += 8) {
        __m256 rows[8];
#pragma GCC unroll 8
        for (int k = 0; k < 8; ++k) {
          const uint8_t* code = from + 2 * (first + k);
          rows[k] = eight(vector(code, false));
          if (kAreTwo) rows[k] = _mm256_add_ps(rows[k], eight(vector(code, true)));
        }
        transpose(rows);
#pragma GCC unroll 8
        for (int k = 0; k < 8; ++k) _mm256_storeu_ps(to + k * kLanes + first, rows[k]);
      }
#else
      for (int k = 0; k < kLanes; ++k) {
        const uint8_t* first = vector(from + 2 * k, false);
        const uint8_t* second = vector(from + 2 * k, true);
        for (int i = 0; i < kVector; ++i) {
          numbers[i][k] = number(first + 2 * i) + (kAreTwo ? number(second + 2 * i) : 0);
        }
      }
#endif
    }
#if defined(__AVX2__)
    static __m256 eight(const uint8_t* from) {
      const __m128i numbers = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
      if constexpr (!kIsBrief) return _mm256_cvtph_ps(numbers);
      return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(numbers), 16));
    }
#else
    static float number(const uint8_t* from) {
      if constexpr (!kIsBrief) return half_to_float(from);
      uint16_t bits;
      memcpy(&bits, from, sizeof bits);
      return bit_cast<float>(uint32_t{bits} << 16);
    }
#endif
  };
  Reader reader(const uint8_t* unit, int v) const { return {book, unit + v * kLanes * 2, {}}; }
};

static inline bool has_books(const GroupedWeight& w) {
  return w.code_kind >= CodeKind::kBook;
}
static inline bool has_half_books(const GroupedWeight& w) {
  return w.code_kind == CodeKind::kBook || w.code_kind == CodeKind::kTwoBooks;
}

// Calls function(codes) with the reader of the weight's codes.
template <class Function>
static inline void with_codes(const GroupedWeight& w, Function&& function) {
  switch (w.code_kind) {
    case CodeKind::kInt8: return function(Int8Codes(w));
    case CodeKind::kFloat8E4M3: return function(Float8Codes<true>(w));
    case CodeKind::kFloat8E5M2: return function(Float8Codes<false>(w));
    case CodeKind::kBook: return function(BookCodes<false, false>(w));
    case CodeKind::kTwoBooks: return function(BookCodes<true, false>(w));
    case CodeKind::kBriefBook: return function(BookCodes<false, true>(w));
    case CodeKind::kTwoBriefBooks: return function(BookCodes<true, true>(w));
    case CodeKind::kTable: break;
  }
  switch (w.bits) {
    case 2: return function(TableCodes<2>(w));
    case 3: return function(TableCodes<3>(w));
    case 4: return function(TableCodes<4>(w));
    case 5: return function(TableCodes<5>(w));
    case 6: return function(TableCodes<6>(w));
    default: return function(ByteCodes(w));
  }
}

// Makes the kCount numbers, or pairs, of a unit for the vectors [begin, end) of a panel.
template <int kCount, class Codes, class Number>
static inline void make_numbers(const Codes& codes, const uint8_t* unit, int begin, int end,
                                Number* numbers) {
  for (int v = begin; v < end; ++v) {
    const typename Codes::Reader reader = codes.reader(unit, v);
#pragma GCC unroll 32
    for (int i = 0; i < kCount; ++i) {
      const auto made = reader[i];
      memcpy(numbers + i * kPanel + v * kLanes, &made, sizeof made);
    }
  }
}

// ---- scales

// Of group `group` of a panel, for the vector `v`: what numbers are multiplied by, and what is taken
// off then: scale * zero + minimum.
struct GroupScale {
  Vec scale, minimum;
};

// Bytes as the upper ones of words.
static inline HalfVec load_upper_bytes(const uint8_t* from) {
#if defined(__AVX512F__)
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  return bit_cast<HalfVec>(_mm256_cvtepu8_epi16(bytes)) << 8;
#else
  return narrow(bit_cast<BitsVec>(load_bytes<uint8_t>(from)) << 8);
#endif
}

static inline Vec load_scales(const GroupedWeight& w, int64_t at) {
  switch (w.scale_kind) {
    case ScaleKind::kFloat32: return load(reinterpret_cast<const float*>(w.scales) + at);
    case ScaleKind::kBFloat16: return load(reinterpret_cast<const BFloat16*>(w.scales) + at);
    case ScaleKind::kFloat16: return load_halves(w.scales + 2 * at);
    case ScaleKind::kFloat8E4M3:
      return 256.0f * float8_numbers<true>(load_upper_bytes(w.scales + at));
    case ScaleKind::kPowerOf2: break;
  }
  const BitsVec bytes = bit_cast<BitsVec>(load_bytes<uint8_t>(w.scales + at));
  return bit_cast<Vec>(bytes == 0 ? BitsVec{} + 0x00400000u : bytes << 23);
}

static inline Vec load_zeros(const GroupedWeight& w, int64_t at) {
  const IntVec zeros = w.zeros == nullptr ? IntVec{} : load_bytes<uint8_t>(w.zeros + at);
  return to_floats(zeros + static_cast<int32_t>(w.zero));
}

static inline bool has_minimums(const GroupedWeight& w) {
  return w.zeros != nullptr || w.minimums != nullptr || w.zero != 0;
}

// Of `group`, counted over all panels. Inlined, as a call would save all sums.
template <class Codes>
[[gnu::always_inline]] static inline GroupScale group_scale(const GroupedWeight& w, int64_t panel,
                                                            int64_t group, int v) {
  const int64_t at = group * kPanel + v * kLanes;
  GroupScale of = {load_scales(w, at), {}};
  if (w.super_scales != nullptr) of.scale *= load(w.super_scales + panel * kPanel + v * kLanes);
  if (has_minimums(w)) {
    of.minimum = load_zeros(w, at) * of.scale;
    if (w.minimums != nullptr) of.minimum += load(w.minimums + at);
  }
  of.scale *= Codes::kFactor;
  return of;
}

// A segment's sum of x and the scale of its products: those of row r are r * stride further on.
struct SegmentOfX {
  const float* sum;
  const float* scale;
  bool has_scale;  // elsewhere it is 1
  int64_t stride, to_excess;

  explicit SegmentOfX(const GroupedProduct& p)
      : sum(p.x + padded_inputs(*p.weight)),
        scale(sum + room_of_segments(*p.weight)),
        has_scale(p.rounding.group_size > 0),
        stride(wide_row_floats(*p.weight)),
        to_excess(room_of_segments(*p.weight) + padded_inputs(*p.weight) / 4) {}

  // The integer that sums of four products each begin with.
  const int32_t* excess() const { return reinterpret_cast<const int32_t*>(scale) + to_excess; }
  SegmentOfX from_row(int64_t row) const {
    SegmentOfX other = *this;
    other.sum += row * stride;
    other.scale += row * stride;
    return other;
  }
  SegmentOfX after(int segments) const {
    SegmentOfX other = *this;
    other.sum += segments;
    other.scale += segments;
    return other;
  }
  SegmentOfX& operator++() { return *this = after(1); }
};

}  // namespace vllm_lite::VLLM_LITE_ISA
