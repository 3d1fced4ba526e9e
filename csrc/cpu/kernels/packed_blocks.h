// The layout of packed quantised weights: read from front to back, with only the file's numbers.
//
// A panel is kPanel outputs. Its inputs come in groups of 32, eight of which make a chunk:
//   header  (two-level formats, once a chunk) half floats: scale[kPanel], minimum[kPanel]
//   scales  one level: half floats scale[kPanel], then minimum[kPanel] where there are any;
//           two levels: bytes scale[kPanel], minimum[kPanel], or one row for each half of a group,
//           in which a minimum takes the high nibble
//   codes   for each half of the panel (16 outputs) the low plane, then for each half the high one
// Unpacked, a half panel's codes are eight lines of 64 bytes, line i holding inputs 4i to 4i + 3 of
// 16 outputs side by side, as dot products of bytes take them. A plane of b bits keeps them in b
// lines: line i is in line i % b, from bit i / b * b of each byte on.
#pragma once

#include "cpu/kernels/ggml_blocks.h"

namespace vllm_lite::VLLM_LITE_ISA {

constexpr int kChunkGroups = 8;
constexpr int kLine = 64;
constexpr int kGroupLines = 8;
constexpr int kHalfPanel = 16;

template <class Block>
struct Packed {
  static constexpr int kParts = kQuantizedGroup / Block::kPartSize;
  static constexpr int kHeaderBytes = Block::kIsTwoLevel ? (Block::kHasMinimum ? 4 : 2) * kPanel : 0;
  static constexpr int kScaleBytes =
      (Block::kIsTwoLevel || !Block::kHasMinimum ? 2 : 4) * int{kPanel};
  static constexpr int kLowBytes = Block::kLowBits * kLine;  // of half a panel
  static constexpr int kHighBytes = Block::kHighBits * kLine;
  static constexpr int kGroupBytes = kScaleBytes + 2 * (kLowBytes + kHighBytes);
  static constexpr int kChunkBytes = kHeaderBytes + kChunkGroups * kGroupBytes;
  static_assert(!Block::kIsTwoLevel || Block::kElements == kChunkGroups * kQuantizedGroup);
  static_assert(Block::kPartSize == 16 || !Block::kIsTwoLevel || Block::kHasMinimum);
  // Scales are signed bytes unless a minimum stands beside them.
  static constexpr bool kHasNibbles = Block::kIsTwoLevel && Block::kHasMinimum && kParts == 2;

  static constexpr int64_t panel_bytes(int64_t num_inputs) {
    const int64_t groups = num_inputs / kQuantizedGroup;
    return groups / kChunkGroups * kChunkBytes + groups % kChunkGroups * kGroupBytes;
  }
};

}  // namespace vllm_lite::VLLM_LITE_ISA
