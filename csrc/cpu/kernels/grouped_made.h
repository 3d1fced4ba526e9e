// Numbers of codes that AVX2 makes faster than it looks up a table of float32. For grouped_linear.cpp
// only.
//
// A look-up among eight numbers there takes twice the time of a conversion from integers, one among
// 64 thirty times. So numbers are made by arithmetic where a table has those of integers or of six-bit
// floats, and looked up as bytes where all are halves of int8: the same numbers, times 1 / kFactor.
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

// Four bits: the numbers 0 to 15.
struct NibbleCodes {
  static constexpr float kFactor = 1.0f;
  static constexpr int kBits = 4, kOfWord = 32 / kBits;

  explicit NibbleCodes(const GroupedWeight&) {}
  static bool has_all(const GroupedWeight& w) {
    return has_numbers(w, [](int i) { return static_cast<float>(i); });
  }

  struct Reader {
    BitsVec words[kBits];  // of the unit
    __attribute__((always_inline)) Vec operator[](int i) const {
      return to_floats(bit_cast<IntVec>(words[i / kOfWord] >> (i % kOfWord * kBits) & 15));
    }
  };
  __attribute__((always_inline)) Reader reader(const uint8_t* unit, int v) const {
    Reader made;
    const uint8_t* first = unit + line_offset(v) + v * kLanes / kHalfPanel * kBits * kLine;
#pragma GCC unroll 4
    for (int i = 0; i < kBits; ++i) made.words[i] = load_words(first + i * kLine);
    return made;
  }
};

// Two or four bits, halves of int8: four codes of as many bytes are looked up at once.
template <int kBits>
struct HalfCodes {
  static constexpr float kFactor = 0.5f;
  static constexpr int kOfByte = 8 / kBits, kOfWord = 4 * kOfByte;
  alignas(16) int8_t table[16];

  explicit HalfCodes(const GroupedWeight& w) {
    for (int i = 0; i < 16; ++i) table[i] = twice(w.table[i & ((1 << kBits) - 1)]);
  }
  static bool has_all(const GroupedWeight& w) {
    return has_numbers(w, [&, i = 0](int) mutable { return 0.5f * twice(w.table[i++]); });
  }

  struct Reader {
    __m256i table;
    BitsVec words[kBits];  // of the unit
    __attribute__((always_inline)) Vec operator[](int i) const {
      constexpr uint32_t kMask = ((1u << kBits) - 1) * 0x01010101u;
      const BitsVec codes = words[i / kOfWord] >> (i % kOfByte * kBits) & kMask;
      const IntVec four = bit_cast<IntVec>(_mm256_shuffle_epi8(table, bit_cast<__m256i>(codes)));
      return to_floats(four << (24 - i % kOfWord / kOfByte * 8) >> 24);
    }
  };
  __attribute__((always_inline)) Reader reader(const uint8_t* unit, int v) const {
    const __m128i numbers = _mm_load_si128(reinterpret_cast<const __m128i*>(table));
    Reader made = {_mm256_broadcastsi128_si256(numbers), {}};
    const uint8_t* first = unit + line_offset(v) + v * kLanes / kHalfPanel * kBits * kLine;
#pragma GCC unroll 4
    for (int i = 0; i < kBits; ++i) made.words[i] = load_words(first + i * kLine);
    return made;
  }

 private:
  static int8_t twice(float number) {
    return static_cast<int8_t>(max_of(-128.0f, min_of(2.0f * number, 127.0f)));
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

// Six bits: a sign, an exponent and kMantissa bits, without infinities.
template <int kMantissa>
struct SmallFloatCodes {
  static constexpr int kBits = 6, kShift = 23 - kMantissa;
  static constexpr int kBias = kMantissa == 3 ? 1 : 3;
  static constexpr float kFactor = 0.5f / (1 << kBias);

  explicit SmallFloatCodes(const GroupedWeight&) {}
  static bool has_all(const GroupedWeight& w) {
    return has_numbers(w, [](int i) {
      const float number = magnitude(static_cast<uint32_t>(i & 31));
      return kFactor * (i < 32 ? number : -number);
    });
  }

  struct Reader {
    CodeReader<kBits> codes;
    // As a float32 a code with a one before its mantissa; without it, where the exponent is 0, the
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

 private:
  static float magnitude(uint32_t code) {
    const float normal = bit_cast<float>(code << kShift | 0x40000000u);
    return min_of(normal, 2.0f * normal - 4.0f);
  }
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
    case 2: return with_codes_of<HalfCodes<2>>(w, function);
    case 4:
      return with_codes_of<NibbleCodes>(w, function) || with_codes_of<HalfCodes<4>>(w, function);
    case 5: return with_codes_of<CountedCodes<5>>(w, function);
    case 6:
      return with_codes_of<CountedCodes<6>>(w, function) ||
             with_codes_of<SmallFloatCodes<3>>(w, function) ||
             with_codes_of<SmallFloatCodes<2>>(w, function);
    default: return false;
  }
}

}  // namespace vllm_lite::VLLM_LITE_ISA

#endif
