// How GGUF's quantised formats hold their codes and scales (layouts: the GGUF and ggml quantisation
// documents). A block has parts of kPartSize values with a scale each; a value of a part is
// scale * (decoded code - kOffset) - minimum.
#pragma once

#include "cpu/ggml_types.h"
#include "cpu/kernels/simd.h"

namespace vllm_lite::VLLM_LITE_ISA {

static inline float half_to_float(uint16_t half) {
#if defined(__F16C__)
  return _cvtsh_ss(half);
#elif defined(__aarch64__)
  return bit_cast<__fp16>(half);
#else
  const uint32_t sign = (half & 0x8000u) << 16;
  const uint32_t magnitude = half & 0x7fffu;
  if (magnitude >= 0x7c00) return bit_cast<float>(sign | 0x7f800000u | (magnitude & 0x3ff) << 13);
  // Moving the exponent by a multiplication gets subnormal numbers right as well.
  const float value = bit_cast<float>(magnitude << 13) * 0x1p112f;
  return bit_cast<float>(sign | bit_cast<uint32_t>(value));
#endif
}
static inline float half_to_float(const uint8_t* from) {
  uint16_t half;
  memcpy(&half, from, sizeof half);
  return half_to_float(half);
}

// The integers by which a part's scale and minimum are multiplied in formats with two levels.
struct IntegerScale {
  int scale;
  int minimum;
};

// Where the scale of a part comes from: a half float beside it; an integer, or nothing more, times
// the block's; an odd number of four bits times the block's; a byte that is a float.
enum class PartScales { kHalves, kIntegers, kNone, kOdd, kOddInCodes, kPowersOf2, kFloat8 };

struct PlainCodes {
  static constexpr bool kHasTable = false;
  static constexpr bool kIsBook = false;
  static constexpr PartScales kScales = PartScales::kHalves;
  static int decode(int code) { return code; }
};

// The lower halves of bytes, then the upper ones.
template <int kCount>
static inline void split_nibbles(const uint8_t* from, uint8_t* __restrict out) {
  // A vector: compilers take a loop of so few bytes apart.
  typedef uint8_t Bytes __attribute__((vector_size(kCount)));
  Bytes both;
  memcpy(&both, from, sizeof both);
  const Bytes low = both & 15, high = both >> 4;
  memcpy(out, &low, sizeof low);
  memcpy(out + kCount, &high, sizeof high);
}

// Formats 4_0, 4_1, 5_0 and 5_1: 32 values with one scale. A byte holds values i and i + 16.
template <bool kMinimum, bool kFifthBit>
struct Block32 : PlainCodes {
  static constexpr bool kHasMinimum = kMinimum;
  static constexpr bool kIsTwoLevel = false;
  static constexpr int kElements = 32;
  static constexpr int kPartSize = 32;
  static constexpr int kScaleAt = 0;
  static constexpr int kMinimumAt = 2;
  static constexpr int kHighAt = kMinimum ? 4 : 2;
  static constexpr int kLowAt = kHighAt + (kFifthBit ? 4 : 0);
  static constexpr int kBytes = kLowAt + 16;
  static constexpr int kLowBits = 4;
  static constexpr int kHighBits = kFifthBit ? 1 : 0;
  static constexpr int kOffset = kMinimum ? 0 : kFifthBit ? 16 : 8;

  static void codes(const uint8_t* block, int, uint8_t* __restrict out) {
    split_nibbles<16>(block + kLowAt, out);
    if constexpr (kFifthBit) {
      uint32_t high;
      memcpy(&high, block + kHighAt, sizeof high);
      for (int i = 0; i < 32; ++i) out[i] |= high >> i << 4 & 16;
    }
  }
};
using BlockQ4_0 = Block32<false, false>;
using BlockQ4_1 = Block32<true, false>;
using BlockQ5_0 = Block32<false, true>;
using BlockQ5_1 = Block32<true, true>;

// Sixteen values that are dense where weights are; 128 stands for zero.
static constexpr uint8_t kNonLinearCodes[16] = {1,   24,  45,  63,  79,  93,  106, 118,
                                            129, 141, 153, 166, 181, 197, 217, 241};
struct BlockIQ4_NL : Block32<false, false> {
  static constexpr int kOffset = 128;
  static constexpr bool kHasTable = true;
  static constexpr const uint8_t* kTable = kNonLinearCodes;
  static int decode(int code) { return kTable[code]; }
};

// Floats of four bits, doubled; 12 stands for zero. Scales are halved.
static constexpr uint8_t kFloat4Codes[16] = {12, 13, 14, 15, 16, 18, 20, 24,
                                             12, 11, 10, 9,  8,  6,  4,  0};
template <int kPart>
struct Float4Block : PlainCodes {
  static constexpr bool kHasMinimum = false;
  static constexpr bool kIsTwoLevel = false;
  static constexpr int kPartSize = kPart;
  static constexpr int kLowBits = 4;
  static constexpr int kHighBits = 0;
  static constexpr int kOffset = 12;
  static constexpr bool kHasTable = true;
  static constexpr const uint8_t* kTable = kFloat4Codes;
  static int decode(int code) { return kTable[code]; }
};

struct BlockMXFP4 : Float4Block<32> {
  static constexpr int kElements = 32;
  static constexpr int kBytes = 17;
  static constexpr PartScales kScales = PartScales::kPowersOf2;

  static void codes(const uint8_t* block, int, uint8_t* __restrict out) {
    split_nibbles<16>(block + 1, out);
  }
  static int scale_byte(const uint8_t* block, int) { return block[0]; }
  // A power of two, less by one than the byte says.
  static float scale(uint32_t byte) {
    return bit_cast<float>(byte < 2 ? 0x00200000u << byte : (byte - 1) << 23);
  }
};

struct BlockNVFP4 : Float4Block<16> {
  static constexpr int kElements = 64;
  static constexpr int kBytes = 36;
  static constexpr PartScales kScales = PartScales::kFloat8;

  static void codes(const uint8_t* block, int part, uint8_t* __restrict out) {
    split_nibbles<8>(block + 4 + part * 8, out);
  }
  // The sign means nothing, and what would be no number is zero.
  static int scale_byte(const uint8_t* block, int part) {
    return block[part] == 0x7f ? 0 : block[part] & 0x7f;
  }
  // e4m3, halved.
  static float scale(uint32_t byte) { return bit_cast<float>(byte << 20) * 0x1p119f; }
};

struct BlockQ8_0 : PlainCodes {
  static constexpr bool kHasMinimum = false;
  static constexpr bool kIsTwoLevel = false;
  static constexpr int kElements = 32;
  static constexpr int kPartSize = 32;
  static constexpr int kScaleAt = 0;
  static constexpr int kMinimumAt = 0;
  static constexpr int kBytes = 34;
  static constexpr int kLowBits = 8;
  static constexpr int kHighBits = 0;
  static constexpr int kOffset = 128;

  static void codes(const uint8_t* block, int, uint8_t* __restrict out) {
    for (int i = 0; i < 32; ++i) out[i] = block[2 + i] ^ 0x80;
  }
};

// 256 values in parts of 16 or 32, whose scales are integers times one or two half floats.
template <bool kMinimum, int kPart>
struct SuperBlock : PlainCodes {
  static constexpr bool kHasMinimum = kMinimum;
  static constexpr bool kIsTwoLevel = true;
  static constexpr int kElements = 256;
  static constexpr int kPartSize = kPart;
  static constexpr PartScales kScales = PartScales::kIntegers;
};

// 128 values share 32 bytes; a byte holds two bits of each of four runs of 32.
static inline void two_bit_codes(const uint8_t* bits, int part, uint8_t* __restrict out) {
  const uint8_t* from = bits + part / 8 * 32 + part % 2 * 16;
  const int shift = part % 8 / 2 * 2;
  for (int i = 0; i < 16; ++i) out[i] = from[i] >> shift & 3;
}

struct BlockQ2_K : SuperBlock<true, 16> {
  static constexpr int kBytes = 84;
  static constexpr int kScaleAt = 80;
  static constexpr int kMinimumAt = 82;
  static constexpr int kLowBits = 2;
  static constexpr int kHighBits = 0;
  static constexpr int kOffset = 0;

  static void codes(const uint8_t* block, int part, uint8_t* __restrict out) {
    two_bit_codes(block + 16, part, out);
  }
  static IntegerScale integer_scale(const uint8_t* block, int part) {
    return {block[part] & 15, block[part] >> 4};
  }
};

struct BlockQ3_K : SuperBlock<false, 16> {
  static constexpr int kBytes = 110;
  static constexpr int kScaleAt = 108;
  static constexpr int kMinimumAt = 108;
  static constexpr int kLowBits = 2;
  static constexpr int kHighBits = 1;
  static constexpr int kOffset = 4;

  static void codes(const uint8_t* block, int part, uint8_t* __restrict out) {
    two_bit_codes(block + 32, part, out);
    const uint8_t* third = block + part % 2 * 16;
    for (int i = 0; i < 16; ++i) out[i] |= (third[i] >> part / 2 & 1) << 2;
  }
  // Six bits: four low ones in bytes 0 to 7, two high ones in bytes 8 to 11.
  static IntegerScale integer_scale(const uint8_t* block, int part) {
    const uint8_t* scales = block + 96;
    const int low = part < 8 ? scales[part] & 15 : scales[part - 8] >> 4;
    return {(low | (scales[8 + part % 4] >> part / 4 * 2 & 3) << 4) - 32, 0};
  }
};

template <bool kFifthBit>
struct BlockQ45_K : SuperBlock<true, 32> {
  static constexpr int kScaleAt = 0;
  static constexpr int kMinimumAt = 2;
  static constexpr int kHighAt = 16;
  static constexpr int kLowAt = kHighAt + (kFifthBit ? 32 : 0);
  static constexpr int kBytes = kLowAt + 128;
  static constexpr int kLowBits = 4;
  static constexpr int kHighBits = kFifthBit ? 1 : 0;
  static constexpr int kOffset = 0;

  static void codes(const uint8_t* block, int part, uint8_t* __restrict out) {
    const uint8_t* from = block + kLowAt + part / 2 * 32;
    const uint8_t* high = block + kHighAt;
    const int shift = part % 2 * 4;
    for (int i = 0; i < 32; ++i) {
      out[i] = from[i] >> shift & 15;
      if (kFifthBit) out[i] |= (high[i] >> part & 1) << 4;
    }
  }
  // Eight pairs of six bit numbers in 12 bytes.
  static IntegerScale integer_scale(const uint8_t* block, int part) {
    const uint8_t* packed = block + 4;
    if (part < 4) return {packed[part] & 63, packed[part + 4] & 63};
    return {(packed[part + 4] & 15) | packed[part - 4] >> 6 << 4,
            packed[part + 4] >> 4 | packed[part] >> 6 << 4};
  }
};
using BlockQ4_K = BlockQ45_K<false>;
using BlockQ5_K = BlockQ45_K<true>;

struct BlockQ6_K : SuperBlock<false, 16> {
  static constexpr int kBytes = 210;
  static constexpr int kScaleAt = 208;
  static constexpr int kMinimumAt = 208;
  static constexpr int kLowBits = 4;
  static constexpr int kHighBits = 2;
  static constexpr int kOffset = 32;

  // Runs of 32: the first two of each 128 take the low nibbles, the others the high ones.
  static void codes(const uint8_t* block, int part, uint8_t* __restrict out) {
    const int run = part % 8 / 2;
    const uint8_t* from = block + part / 8 * 64 + run % 2 * 32 + part % 2 * 16;
    const uint8_t* top = block + 128 + part / 8 * 32 + part % 2 * 16;
    const int shift = run / 2 * 4;
    for (int i = 0; i < 16; ++i) {
      out[i] = static_cast<uint8_t>((from[i] >> shift & 15) | (top[i] >> run * 2 & 3) << 4);
    }
  }
  static IntegerScale integer_scale(const uint8_t* block, int part) {
    return {static_cast<int8_t>(block[192 + part]), 0};
  }
};

struct BlockIQ4_XS : SuperBlock<false, 32> {
  static constexpr int kBytes = 136;
  static constexpr int kScaleAt = 0;
  static constexpr int kLowBits = 4;
  static constexpr int kHighBits = 0;
  static constexpr int kOffset = 128;
  static constexpr bool kHasTable = true;
  static constexpr const uint8_t* kTable = kNonLinearCodes;
  static int decode(int code) { return kTable[code]; }

  static void codes(const uint8_t* block, int part, uint8_t* __restrict out) {
    split_nibbles<16>(block + 8 + part * 16, out);
  }
  // Six bits: two high ones in bytes 2 and 3, four low ones in bytes 4 to 7.
  static IntegerScale integer_scale(const uint8_t* block, int part) {
    const int low = block[4 + part / 2] >> part % 2 * 4 & 15;
    return {(low | (block[2 + part / 4] >> part % 4 * 2 & 3) << 4) - 32, 0};
  }
};

// Values -1, 0 and 1 (and 2, of two bits), with one scale for all.
struct TernaryBlock : SuperBlock<false, 32> {
  static constexpr PartScales kScales = PartScales::kNone;
  static constexpr int kOffset = 1;
};

struct BlockTQ2_0 : TernaryBlock {
  static constexpr int kBytes = 66;
  static constexpr int kScaleAt = 64;
  static constexpr int kLowBits = 2;
  static constexpr int kHighBits = 0;

  static void codes(const uint8_t* block, int part, uint8_t* __restrict out) {
    for (int i = 0; i < 32; ++i) out[i] = block[part / 4 * 32 + i] >> part % 4 * 2 & 3;
  }
};

// Five digits of base 3 in a byte, as a fraction of 256: the first is what three times it carries.
struct BlockTQ1_0 : TernaryBlock {
  static constexpr int kBytes = 54;
  static constexpr int kScaleAt = 52;
  static constexpr int kLowBits = 0;
  static constexpr int kHighBits = 0;

  static int digit(int byte, int place) {
    constexpr int kPowers[5] = {1, 3, 9, 27, 81};
    return (byte * kPowers[place] & 255) * 3 >> 8;
  }
  // Runs of 32 bytes with five values each, of 16, and of 4 with four.
  static void codes(const uint8_t* block, int part, uint8_t* __restrict out) {
    for (int i = 0; i < 32; ++i) {
      const int at = part * 32 + i, start = at < 160 ? 0 : at < 240 ? 160 : 240;
      const int run = at < 160 ? 32 : at < 240 ? 16 : 4;
      const int place = (at - start) / run;
      out[i] = static_cast<uint8_t>(digit(block[start / 5 + (at - start) % run], place));
    }
  }
};

// Signs of one scale, for 128 values.
struct BlockQ1_0 : TernaryBlock {
  static constexpr int kElements = 128;
  static constexpr int kBytes = 18;
  static constexpr int kScaleAt = 0;
  static constexpr int kLowBits = 1;
  static constexpr int kHighBits = 0;
  static constexpr bool kHasTable = true;
  static constexpr uint8_t kTable[16] = {0, 2};
  static int decode(int code) { return kTable[code]; }

  static void codes(const uint8_t* block, int part, uint8_t* __restrict out) {
    for (int i = 0; i < 32; ++i) out[i] = block[2 + part * 4 + i / 8] >> i % 8 & 1;
  }
};

// As TQ2_0, with a scale for 64 values and four neighbours in a byte.
struct BlockQ2_0 : TernaryBlock {
  static constexpr int kElements = 64;
  static constexpr int kBytes = 18;
  static constexpr int kScaleAt = 0;
  static constexpr int kLowBits = 2;
  static constexpr int kHighBits = 0;

  static void codes(const uint8_t* block, int part, uint8_t* __restrict out) {
    for (int i = 0; i < 32; ++i) out[i] = block[2 + part * 8 + i / 4] >> i % 4 * 2 & 3;
  }
};

}  // namespace vllm_lite::VLLM_LITE_ISA
