// The layout of packed quantised weights: read from front to back, with only the file's numbers.
//
// A panel is kPanel outputs. Its inputs come in groups of 32, eight of which make a chunk, or as many
// as a block with two levels has:
//   header  (two-level formats, once a chunk) half floats: scale[kPanel], minimum[kPanel]
//   scales  rows of kPanel: half floats scale, then minimum where there are any; or bytes scale and
//           minimum, or one row for each half of a group, in which a minimum takes the high nibble;
//           or the low nibbles of odd scales and for another half the high ones
//   codes   for each half of the panel (16 outputs) the low plane, then for each half the high one;
//           of books rows of kPanel bytes: of each vector the lowest bits of its entry, then the
//           bits above, lowest first, then of each eight values their signs
// Unpacked, a half panel's codes are eight lines of 64 bytes, line i holding inputs 4i to 4i + 3 of
// 16 outputs side by side, as dot products of bytes take them. A plane of b bits keeps them in b
// lines: line i is in line i % b, from bit i / b * b of each byte on. Base 3 keeps all lines of a chunk
// behind its header, for each half of the panel five in one, the first as the highest digit.
#pragma once

#include "cpu/kernels/ggml_books.h"

namespace vllm_lite::VLLM_LITE_ISA {

constexpr int kChunkGroups = 8;
constexpr int kLine = 64;
constexpr int kGroupLines = 8;
constexpr int kHalfPanel = 16;
// Of half a panel.
constexpr int kTernaryLines = (kChunkGroups * kGroupLines + 4) / 5;

template <class Block>
constexpr int count_scale_bytes() {
  constexpr int kParts = kQuantizedGroup / Block::kPartSize;
  switch (Block::kScales) {
    case PartScales::kHalves: return Block::kHasMinimum ? 4 : 2;
    case PartScales::kIntegers: return kParts == 1 && Block::kHasMinimum ? 2 : kParts;
    case PartScales::kOdd: return 1;
    case PartScales::kNone:
    case PartScales::kOddInCodes: return 0;
    default: return kParts;
  }
}
template <class Block>
constexpr int count_code_bytes() {
  if constexpr (Block::kIsBook) {
    const int above = (Block::kEntries * Block::kAbove + 7) / 8;
    return (Block::kEntries + above + Block::kSignBytes) * int{kPanel};
  } else {
    return 2 * (Block::kLowBits + Block::kHighBits) * kLine;
  }
}

template <class Block>
struct Packed {
  static constexpr int kParts = kQuantizedGroup / Block::kPartSize;
  static constexpr int kGroups =
      Block::kIsTwoLevel ? Block::kElements / int{kQuantizedGroup} : kChunkGroups;
  static constexpr bool kIsTernary = __is_same(Block, BlockTQ1_0);
  static constexpr int kHalvesBytes = Block::kIsTwoLevel ? (Block::kHasMinimum ? 4 : 2) * kPanel : 0;
  static constexpr int kHeaderBytes = kHalvesBytes + (kIsTernary ? 2 * kTernaryLines * kLine : 0);
  static constexpr int kScaleRows = count_scale_bytes<Block>();
  static constexpr int kScaleBytes = kScaleRows * int{kPanel};
  static constexpr int kLowBytes = Block::kLowBits * kLine;  // of half a panel
  static constexpr int kHighBytes = Block::kHighBits * kLine;
  static constexpr int kGroupBytes = kScaleBytes + count_code_bytes<Block>();
  static constexpr int kChunkBytes = kHeaderBytes + kGroups * kGroupBytes;
  static_assert(kGroups <= kChunkGroups);
  // Integer scales are signed bytes unless a minimum stands beside them.
  static constexpr bool kHasNibbles = Block::kIsTwoLevel && Block::kHasMinimum && kParts == 2;

  static constexpr int64_t panel_bytes(int64_t num_inputs) {
    const int64_t groups = num_inputs / kQuantizedGroup;
    return groups / kGroups * kChunkBytes + groups % kGroups * kGroupBytes;
  }
};

}  // namespace vllm_lite::VLLM_LITE_ISA
