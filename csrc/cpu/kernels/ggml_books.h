// GGUF's formats by codebooks, whose index stands for a vector of 8 or of 4 small integers, and the
// list of all formats with blocks.
//
// Of signed books the index stands for magnitudes, and a bit of each value for its sign. Others have
// eighths of -1, 0 and 1, to all of which of a vector a sign bit adds or from which it takes one.
// A scale is an odd number of up to five bits times the block's half float times kStep.
#pragma once

#include "cpu/kernels/ggml_blocks.h"

namespace vllm_lite::VLLM_LITE_ISA {

template <GgmlType kType, int kVectorSize, int kBitsAboveByte, bool kHasSigns, int kPart>
struct BookBlock : SuperBlock<false, kPart> {
  static constexpr bool kIsBook = true;
  static constexpr PartScales kScales = PartScales::kOdd;
  static constexpr int kLowBits = 0;
  static constexpr int kHighBits = 0;
  static constexpr int kScaleAt = 0;
  static constexpr float kStep = 0.125f;
  static constexpr int kVector = kVectorSize;
  static constexpr int kAbove = kBitsAboveByte;  // of an entry: an index, or one and a bit beside it
  static constexpr bool kIsSigned = kHasSigns;
  static constexpr int kOffset = kIsSigned ? 64 : 16;
  // Of a group.
  static constexpr int kEntries = static_cast<int>(kQuantizedGroup) / kVector;
  static constexpr int kSignBytes = kIsSigned ? 4 : 0;

  static const uint32_t* book() { return ggml_books[kType]; }
};

static inline uint32_t word_at(const uint8_t* from) {
  uint32_t word;
  memcpy(&word, from, sizeof word);
  return word;
}
static inline int half_word_at(const uint8_t* from) { return from[0] | from[1] << 8; }
static inline int nibble_at(const uint8_t* from, int i) { return from[i / 2] >> i % 2 * 4 & 15; }
// Seven signs, and the eighth that makes the number of ones even.
static inline int even_signs(int seven) { return seven | (__builtin_popcount(seven) & 1) << 7; }

// In all of them `i` counts the vectors of a block, or its eights of signs.
struct BlockIQ2_XXS : BookBlock<kGgmlIQ2_XXS, 8, 0, true, 32> {
  static constexpr int kBytes = 66;
  static int entry(const uint8_t* block, int i) { return block[2 + i / 4 * 8 + i % 4]; }
  static int signs(const uint8_t* block, int i) {
    return even_signs(word_at(block + 6 + i / 4 * 8) >> i % 4 * 7 & 127);
  }
  static int odd(const uint8_t* block, int part) { return block[9 + part * 8] >> 4; }
};

struct BlockIQ2_XS : BookBlock<kGgmlIQ2_XS, 8, 1, true, 16> {
  static constexpr int kBytes = 74;
  static int entry(const uint8_t* block, int i) { return half_word_at(block + 2 + 2 * i) & 511; }
  static int signs(const uint8_t* block, int i) { return even_signs(block[3 + 2 * i] >> 1); }
  static int odd(const uint8_t* block, int part) { return nibble_at(block + 66, part); }
};

struct BlockIQ2_S : BookBlock<kGgmlIQ2_S, 8, 2, true, 16> {
  static constexpr int kBytes = 82;
  static int entry(const uint8_t* block, int i) {
    return block[2 + i] | (block[66 + i / 4] >> i % 4 * 2 & 3) << 8;
  }
  static int signs(const uint8_t* block, int i) { return block[34 + i]; }
  static int odd(const uint8_t* block, int part) { return nibble_at(block + 74, part); }
};

struct BlockIQ3_XXS : BookBlock<kGgmlIQ3_XXS, 4, 0, true, 32> {
  static constexpr int kBytes = 98;
  static constexpr float kStep = 0.25f;
  static int entry(const uint8_t* block, int i) { return block[2 + i]; }
  static int signs(const uint8_t* block, int i) {
    return even_signs(word_at(block + 66 + i / 4 * 4) >> i % 4 * 7 & 127);
  }
  static int odd(const uint8_t* block, int part) { return block[69 + part * 4] >> 4; }
};

struct BlockIQ3_S : BookBlock<kGgmlIQ3_S, 4, 1, true, 32> {
  static constexpr int kBytes = 110;
  static constexpr float kStep = 1.0f;
  static int entry(const uint8_t* block, int i) {
    return block[2 + i] | (block[66 + i / 8] >> i % 8 & 1) << 8;
  }
  static int signs(const uint8_t* block, int i) { return block[74 + i]; }
  static int odd(const uint8_t* block, int part) { return nibble_at(block + 106, part); }
};

// Of a group's four bits beside indices, three are its scale's and the last is all its vectors'.
struct BlockIQ1_S : BookBlock<kGgmlIQ1_S, 8, 4, false, 32> {
  static constexpr int kBytes = 50;
  static constexpr PartScales kScales = PartScales::kOddInCodes;
  static int entry(const uint8_t* block, int i) {
    const int rest = half_word_at(block + 34 + i / 4 * 2), place = i % 4;
    return block[2 + i] | (rest >> 3 * place & 7) << 8 | (rest >> (12 + place) & 1) << 11;
  }
  static int takes(const uint8_t* block, int i) { return block[35 + i / 4 * 2] >> 7; }
  static int odd(const uint8_t* block, int part) { return block[35 + part * 2] >> 4 & 7; }
};

struct BlockIQ1_M : BookBlock<kGgmlIQ1_M, 8, 4, false, 16> {
  static constexpr int kBytes = 56;
  static int entry(const uint8_t* block, int i) {
    return block[i] | nibble_at(block + 32, i) << 8;
  }
  static int takes(const uint8_t* block, int i) { return nibble_at(block + 32, i) >> 3; }
  static int odd(const uint8_t* block, int part) {
    return half_word_at(block + 48 + part / 4 * 2) >> part % 4 * 3 & 7;
  }
  // Four bits in each of four words.
  static uint16_t half(const uint8_t* block) {
    uint32_t bits = 0;
    for (int i = 0; i < 4; ++i) bits |= static_cast<uint32_t>(block[49 + 2 * i] >> 4) << 4 * i;
    return static_cast<uint16_t>(bits);
  }
};

// Codes of a part, less kOffset what a scale is multiplied by.
template <class Block>
static inline void part_codes(const uint8_t* block, int part, uint8_t* out) {
  if constexpr (!Block::kIsBook) {
    Block::codes(block, part, out);
  } else {
    for (int i = 0; i < Block::kPartSize; ++i) {
      const int at = part * Block::kPartSize + i;
      const int entry = Block::entry(block, at / Block::kVector);
      const int index = Block::kIsSigned ? entry : entry & 2047;
      const uint32_t word = Block::book()[(index * Block::kVector + at % Block::kVector) / 4];
      int code = word >> at % 4 * 8 & 255;
      if constexpr (Block::kIsSigned) {
        const bool is_negative = Block::signs(block, at / 8) >> at % 8 & 1;
        code = is_negative ? 2 * Block::kOffset - code : code;
      } else {
        code += Block::takes(block, at / Block::kVector) ? -1 : 1;
      }
      out[i] = static_cast<uint8_t>(code);
    }
  }
}

// The half float of a block with two levels.
template <class Block>
static inline uint16_t block_half(const uint8_t* block) {
  if constexpr (__is_same(Block, BlockIQ1_M)) {
    return Block::half(block);
  } else {
    return static_cast<uint16_t>(half_word_at(block + Block::kScaleAt));
  }
}

struct PartScale {
  float scale;
  float minimum;
};
template <class Block>
static inline PartScale part_scale(const uint8_t* block, int part) {
  constexpr PartScales kScales = Block::kScales;
  if constexpr (kScales == PartScales::kPowersOf2 || kScales == PartScales::kFloat8) {
    return {Block::scale(static_cast<uint32_t>(Block::scale_byte(block, part))), 0.0f};
  } else {
    const float scale = half_to_float(block_half<Block>(block));
    if constexpr (kScales == PartScales::kNone) return {scale, 0.0f};
    if constexpr (Block::kIsBook) {
      return {scale * static_cast<float>(2 * Block::odd(block, part) + 1) * Block::kStep, 0.0f};
    } else {
      float minimum = 0.0f;
      if constexpr (Block::kHasMinimum) minimum = half_to_float(block + Block::kMinimumAt);
      if constexpr (kScales != PartScales::kIntegers) {
        return {scale, -minimum};
      } else {
        const IntegerScale factor = Block::integer_scale(block, part);
        return {scale * static_cast<float>(factor.scale),
                minimum * static_cast<float>(factor.minimum)};
      }
    }
  }
}

// Calls body(Block{}) for the quantised format of this number; false where there is none.
template <class Body>
static inline bool with_block(int ggml_type, Body&& body) {
  switch (ggml_type) {
    case kGgmlQ4_0: return body(BlockQ4_0{}), true;
    case kGgmlQ4_1: return body(BlockQ4_1{}), true;
    case kGgmlQ5_0: return body(BlockQ5_0{}), true;
    case kGgmlQ5_1: return body(BlockQ5_1{}), true;
    case kGgmlQ8_0: return body(BlockQ8_0{}), true;
    case kGgmlQ2_K: return body(BlockQ2_K{}), true;
    case kGgmlQ3_K: return body(BlockQ3_K{}), true;
    case kGgmlQ4_K: return body(BlockQ4_K{}), true;
    case kGgmlQ5_K: return body(BlockQ5_K{}), true;
    case kGgmlQ6_K: return body(BlockQ6_K{}), true;
    case kGgmlIQ2_XXS: return body(BlockIQ2_XXS{}), true;
    case kGgmlIQ2_XS: return body(BlockIQ2_XS{}), true;
    case kGgmlIQ3_XXS: return body(BlockIQ3_XXS{}), true;
    case kGgmlIQ1_S: return body(BlockIQ1_S{}), true;
    case kGgmlIQ4_NL: return body(BlockIQ4_NL{}), true;
    case kGgmlIQ3_S: return body(BlockIQ3_S{}), true;
    case kGgmlIQ2_S: return body(BlockIQ2_S{}), true;
    case kGgmlIQ4_XS: return body(BlockIQ4_XS{}), true;
    case kGgmlIQ1_M: return body(BlockIQ1_M{}), true;
    case kGgmlTQ1_0: return body(BlockTQ1_0{}), true;
    case kGgmlTQ2_0: return body(BlockTQ2_0{}), true;
    case kGgmlMXFP4: return body(BlockMXFP4{}), true;
    case kGgmlNVFP4: return body(BlockNVFP4{}), true;
    case kGgmlQ1_0: return body(BlockQ1_0{}), true;
    case kGgmlQ2_0: return body(BlockQ2_0{}), true;
    default: return false;
  }
}

}  // namespace vllm_lite::VLLM_LITE_ISA
