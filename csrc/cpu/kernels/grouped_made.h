// Numbers of codes that AVX2 makes faster than it looks up a table of float32. For grouped_linear.cpp
// only.
//
// A look-up among eight numbers there takes twice the time of a conversion from integers, one among
// 64 thirty times. So integers are converted, the bytes of other numbers of up to four bits looked up
// for four codes at once, and those of six bits looked up as eighths of int8, or computed.
#pragma once

#include "cpu/kernels/grouped_codes.h"

#if defined(__AVX2__) && !defined(__AVX512F__)
#define VLLM_LITE_MAKES_NUMBERS 1

namespace vllm_lite::VLLM_LITE_ISA {

// Whether code i is number_of(i), for all.
template <class NumberOf>
static inline bool has_numbers(const GroupedWeight& w, NumberOf&& number_of) {
  for (int i = 0; i < 1 << w.bits; ++i) {
    if (w.table[i] != number_of(i)) return false;
  }
  return true;
}

// The words of a unit's plane.
template <int kWords>
[[gnu::always_inline]] static inline void load_unit(const uint8_t* plane, BitsVec (&words)[kWords]) {
#pragma GCC unroll 4
  for (int i = 0; i < kWords; ++i) words[i] = load_words(plane + i * kLine);
}

static inline __m256i broadcast_bytes(const int8_t* from) {
  return _mm256_broadcastsi128_si256(_mm_load_si128(reinterpret_cast<const __m128i*>(from)));
}

// Four bits: the numbers 0 to 15.
struct NibbleCodes {
  static constexpr float kFactor = 1.0f;
  static constexpr int kBits = 4, kOfWord = 32 / kBits;

  explicit NibbleCodes(const GroupedWeight&) {}
  static bool has_all(const GroupedWeight& w) {
    return has_numbers(w, [](int i) { return static_cast<float>(i); });
  }

  struct Reader {
    CodeReader<kBits> codes;
    __attribute__((always_inline)) Vec operator[](int i) const {
      const BitsVec word = load_words(codes.low + i / kOfWord * kLine);
      return to_floats(bit_cast<IntVec>(word >> (i % kOfWord * kBits) & 15));
    }
  };
  Reader reader(const uint8_t* unit, int v) const { return {{unit, v}}; }
};

// Two or four bits, any numbers: each of their bytes is looked up for four codes at once. Those of
// bfloat16 have two bytes.
template <int kBits, int kBytes>
struct BytesOfCodes {
  static constexpr float kFactor = 1.0f;
  static constexpr int kOfByte = 8 / kBits, kOfWord = 4 * kOfByte;
  static constexpr bool kAreBrief = kBytes == 2;
  alignas(16) int8_t bytes[kBytes][16];

  explicit BytesOfCodes(const GroupedWeight& w) {
    for (int i = 0; i < 16; ++i) {
      const uint32_t number = bit_cast<uint32_t>(w.table[i & ((1 << kBits) - 1)]);
      for (int b = 0; b < kBytes; ++b) {
        bytes[b][i] = static_cast<int8_t>(number >> (32 - 8 * (kBytes - b)));
      }
    }
  }
  static bool has_all(const GroupedWeight& w) {
    for (int i = 0; kAreBrief && i < 1 << kBits; ++i) {
      if (bit_cast<uint32_t>(w.table[i]) & 0xffff) return false;
    }
    return true;
  }

  struct Reader {
    const uint8_t* words;  // of the unit
    __m256i tables[kBytes];
    __attribute__((always_inline)) Vec operator[](int i) const {
      constexpr uint32_t kMask = ((1u << kBits) - 1) * 0x01010101u;
      const __m256i stored = bit_cast<__m256i>(load_words(words + i / kOfWord * kLine));
      const BitsVec word = bit_cast<BitsVec>(_mm256_shuffle_epi8(stored, places()));
      const __m256i codes = bit_cast<__m256i>(word >> (i % kOfByte * kBits) & kMask);
      const int byte = i % kOfWord / kOfByte;
      const __m256i upper = two_bytes(kBytes - 2, codes, byte < 2);
      if constexpr (kAreBrief) {
        const BitsVec two = bit_cast<BitsVec>(upper);
        return bit_cast<Vec>(byte % 2 == 0 ? two << 16 : two & 0xffff0000u);
      } else {
        const __m256i lower = two_bytes(0, codes, byte < 2);
        return bit_cast<Vec>(byte % 2 == 0 ? _mm256_unpacklo_epi16(lower, upper)
                                           : _mm256_unpackhi_epi16(lower, upper));
      }
    }

   private:
    // Of the four outputs of each half, so that words follow: their first bytes, their second ones and
    // so on, or pairs of their first two, then of their others.
    static __m256i places() {
      if constexpr (kAreBrief) {
        return _mm256_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15,
                                0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15);
      } else {
        return _mm256_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15,
                                0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
      }
    }
    // Two bytes side by side of each number of half of the codes.
    __attribute__((always_inline)) __m256i two_bytes(int at, __m256i codes, bool is_first) const {
      const __m256i low = _mm256_shuffle_epi8(tables[at], codes);
      const __m256i up = _mm256_shuffle_epi8(tables[at + 1], codes);
      return is_first ? _mm256_unpacklo_epi8(low, up) : _mm256_unpackhi_epi8(low, up);
    }
  };
  __attribute__((always_inline)) Reader reader(const uint8_t* unit, int v) const {
    Reader made = {CodeReader<kBits>(unit, v).low, {}};
#pragma GCC unroll 4
    for (int b = 0; b < kBytes; ++b) made.tables[b] = broadcast_bytes(bytes[b]);
    return made;
  }
};

// Five or six bits: integers from some number on.
template <int kBits>
struct CountedCodes {
  static constexpr float kFactor = 1.0f;
  int32_t first;

  explicit CountedCodes(const GroupedWeight& w) : first(static_cast<int32_t>(w.table[0])) {}
  static bool has_all(const GroupedWeight& w) {
    if (!(w.table[0] >= -128.0f && w.table[0] <= 128.0f)) return false;
    const CountedCodes codes(w);
    return has_numbers(w, [&](int i) { return static_cast<float>(codes.first + i); });
  }

  struct Reader {
    CodeReader<kBits> codes;
    int32_t first;
    __attribute__((always_inline)) Vec operator[](int i) const {
      return to_floats(bit_cast<IntVec>(codes[i] & ((1u << kBits) - 1)) + first);
    }
  };
  Reader reader(const uint8_t* unit, int v) const { return {{unit, v}, first}; }
};

// Six bits of a float with three of mantissa (e2m3): eighths of int8. Four codes are looked up at once:
// the lower four bits of each are a number or, by the fifth, that of another; the sixth is the sign.
struct EighthCodes {
  static constexpr float kFactor = 0.125f;
  static constexpr int kLow = 4, kHigh = 2;
  alignas(16) static constexpr int8_t kUpper[16] = {16, 18, 20, 22, 24, 26, 28, 30,
                                                    32, 36, 40, 44, 48, 52, 56, 60};
  alignas(16) static constexpr int8_t kSigns[16] = {1, 1, -1, -1};

  explicit EighthCodes(const GroupedWeight&) {}
  static bool has_all(const GroupedWeight& w) {
    return has_numbers(w, [](int i) {
      const float number = kFactor * static_cast<float>(i & 16 ? kUpper[i & 15] : i & 15);
      return i < 32 ? number : -number;
    });
  }

  struct Reader {
    BitsVec low[kLow], high[kHigh];  // words of the unit
    __attribute__((always_inline)) Vec operator[](int i) const {
      const int word = i / 8, second = i % 2, byte = word % 2;
      const auto bytes = [](BitsVec v) { return bit_cast<__m256i>(v); };
      // Codes 0, 2, 4 and 6 of eight, or those after them: each half of a word has two in one byte.
      const BitsVec outputs = {0, 0x04040404, 0x08080808, 0x0c0c0c0c,
                               0, 0x04040404, 0x08080808, 0x0c0c0c0c};
      const BitsVec places = outputs + (byte * 0x01010101u + 0x02020000u);
      BitsVec above = bit_cast<BitsVec>(_mm256_shuffle_epi8(bytes(high[word / 2]), bytes(places)));
      above = above >> (2 * second) & 0x30033003u;
      above = (above | above >> 4) & 0x03030303u;
      const BitsVec below = low[word] >> (4 * second) & 0x0f0f0f0fu;
      const __m256i upper = _mm256_shuffle_epi8(broadcast_bytes(kUpper), bytes(below));
      const __m256i number = _mm256_blendv_epi8(bytes(below), upper, bytes(above << 7));
      const __m256i signs = _mm256_shuffle_epi8(broadcast_bytes(kSigns), bytes(above));
      const IntVec four = bit_cast<IntVec>(_mm256_sign_epi8(number, signs));
      return to_floats(four << (24 - i % 8 / 2 * 8) >> 24);
    }
  };
  __attribute__((always_inline)) Reader reader(const uint8_t* unit, int v) const {
    const CodeReader<6> from(unit, v);
    Reader made;
    load_unit(from.low, made.low);
    load_unit(from.high, made.high);
    return made;
  }
};

// So with two bits of mantissa (e3m2), by arithmetic.
struct SmallFloatCodes {
  static constexpr int kShift = 21;  // of a code's mantissa to that of a float32
  static constexpr float kFactor = 1.0f / 16;

  explicit SmallFloatCodes(const GroupedWeight&) {}
  static bool has_all(const GroupedWeight& w) {
    return has_numbers(w, [](int i) {
      const float normal = bit_cast<float>(static_cast<uint32_t>(i & 31) << kShift | 0x40000000u);
      const float number = kFactor * min_of(normal, 2.0f * normal - 4.0f);
      return i < 32 ? number : -number;
    });
  }

  struct Reader {
    CodeReader<6> codes;
    // As a float32 a code has a one before its mantissa; without it, where the exponent is 0, the
    // number is less: 4 * m rather than 2 * (1 + m).
    __attribute__((always_inline)) Vec operator[](int i) const {
      const BitsVec code = codes[i];
      const Vec normal = bit_cast<Vec>((code << kShift & (31u << kShift)) | 0x40000000u);
      const Vec small = multiply_add(normal, broadcast(2.0f), broadcast(-4.0f));
      const BitsVec number = bit_cast<BitsVec>(_mm256_min_ps(small, normal));
      return bit_cast<Vec>(number | (code << 26 & 0x80000000u));
    }
  };
  Reader reader(const uint8_t* unit, int v) const { return {{unit, v}}; }
};

template <class Codes, class Function>
static inline bool with_codes_of(const GroupedWeight& w, Function&& function) {
  if (!Codes::has_all(w)) return false;
  function(Codes(w));
  return true;
}

// Calls function(codes) where the weight's numbers are made; whether it did.
template <class Function>
static inline bool with_made_codes(const GroupedWeight& w, Function&& function) {
  if (w.code_kind != CodeKind::kTable) return false;
  switch (w.bits) {
    case 2: return with_codes_of<BytesOfCodes<2, 2>>(w, function);
    case 4:
      return with_codes_of<NibbleCodes>(w, function) ||
             with_codes_of<BytesOfCodes<4, 2>>(w, function) ||
             with_codes_of<BytesOfCodes<4, 4>>(w, function);
    case 5: return with_codes_of<CountedCodes<5>>(w, function);
    case 6:
      return with_codes_of<CountedCodes<6>>(w, function) ||
             with_codes_of<EighthCodes>(w, function) ||
             with_codes_of<SmallFloatCodes>(w, function);
    default: return false;
  }
}

}  // namespace vllm_lite::VLLM_LITE_ISA

#endif
