// Packs a file's blocks into panels (see packed_blocks.h).
#include "cpu/kernels/kernels.h"
#include "cpu/kernels/packed_blocks.h"

namespace vllm_lite::VLLM_LITE_ISA {
namespace {

// Codes of a group for a panel, first as a row for each output, then as unpacked lines.
struct GroupCodes {
  alignas(64) uint8_t rows[kPanel][kQuantizedGroup];
  alignas(64) uint8_t lines[2][kGroupLines][kLine];

  void make_lines() {
    for (int output = 0; output < kPanel; ++output) {
      for (int i = 0; i < kGroupLines; ++i) {
        memcpy(lines[output / kHalfPanel][i] + output % kHalfPanel * 4, rows[output] + i * 4, 4);
      }
    }
  }

  // Bits [shift, shift + kBits) of the codes of one half panel.
  template <int kBits>
  void write_plane(int half, int shift, uint8_t* to) const {
    constexpr int kMask = (1 << kBits) - 1;
    for (int line = 0; line < kBits; ++line) {
      uint8_t packed[kLine] = {};
      for (int i = line; i < kGroupLines; i += kBits) {
        for (int k = 0; k < kLine; ++k) {
          packed[k] |= static_cast<uint8_t>((lines[half][i][k] >> shift & kMask) << i / kBits * kBits);
        }
      }
      memcpy(to + line * kLine, packed, kLine);
    }
  }
};

// One output's scales of group `group` of its block; `to` is the group's first byte.
template <class Block>
void write_scales(const uint8_t* block, int group, int output, uint8_t* to) {
  if constexpr (!Block::kIsTwoLevel) {
    memcpy(to + output * 2, block + Block::kScaleAt, 2);
    if (Block::kHasMinimum) memcpy(to + (kPanel + output) * 2, block + Block::kMinimumAt, 2);
  } else if constexpr (Packed<Block>::kParts == 1) {
    const IntegerScale s = Block::integer_scale(block, group);
    to[output] = static_cast<uint8_t>(s.scale);
    to[kPanel + output] = static_cast<uint8_t>(s.minimum);
  } else {
    for (int part = 0; part < 2; ++part) {
      const IntegerScale s = Block::integer_scale(block, group * 2 + part);
      to[part * kPanel + output] = static_cast<uint8_t>(s.scale | s.minimum << 4);
    }
  }
}

template <class Block>
void pack_panel(const PackQuantized& p, int64_t panel) {
  using Layout = Packed<Block>;
  constexpr int kBlockGroups = Block::kElements / kQuantizedGroup;
  const int64_t num_outputs = min_of<int64_t>(kPanel, p.num_outputs - panel * kPanel);
  const uint8_t* rows = p.blocks + panel * kPanel * p.block_stride;
  uint8_t* to = p.packed + panel * Layout::panel_bytes(p.num_inputs);
  memset(to, 0, Layout::panel_bytes(p.num_inputs));
  GroupCodes codes = {};
  const int64_t num_groups = p.num_inputs / kQuantizedGroup;
  for (int64_t g = 0; g < num_groups; ++g) {
    const uint8_t* blocks = rows + g / kBlockGroups * Block::kBytes;
    const int group = static_cast<int>(g % kBlockGroups);
    uint8_t* header = to;
    if (Block::kIsTwoLevel && group == 0) to += Layout::kHeaderBytes;
    for (int output = 0; output < num_outputs; ++output) {
      const uint8_t* block = blocks + output * p.block_stride;
      if (Block::kIsTwoLevel && group == 0) {
        memcpy(header + output * 2, block + Block::kScaleAt, 2);
        if (Block::kHasMinimum) {
          memcpy(header + (kPanel + output) * 2, block + Block::kMinimumAt, 2);
        }
      }
      write_scales<Block>(block, group, output, to);
      for (int part = 0; part < Layout::kParts; ++part) {
        Block::codes(block, group * Layout::kParts + part,
                     codes.rows[output] + part * Block::kPartSize);
      }
    }
    codes.make_lines();
    for (int half = 0; half < 2; ++half) {
      uint8_t* planes = to + Layout::kScaleBytes;
      codes.write_plane<Block::kLowBits>(half, 0, planes + half * Layout::kLowBytes);
      if constexpr (Block::kHighBits > 0) {
        planes += 2 * Layout::kLowBytes;
        codes.write_plane<Block::kHighBits>(half, Block::kLowBits,
                                            planes + half * Layout::kHighBytes);
      }
    }
    to += Layout::kGroupBytes;
  }
}

}  // namespace

int64_t quantized_panel_bytes(int ggml_type, int64_t num_inputs) {
  int64_t bytes = -1;
  with_block(ggml_type, [&](auto block) {
    using Block = decltype(block);
    if (num_inputs % Block::kElements == 0) bytes = Packed<Block>::panel_bytes(num_inputs);
  });
  return bytes;
}

void pack_quantized(const PackQuantized& p, int64_t begin_panel, int64_t end_panel) {
  with_block(p.ggml_type, [&](auto block) {
    for (int64_t i = begin_panel; i < end_panel; ++i) pack_panel<decltype(block)>(p, i);
  });
}

}  // namespace vllm_lite::VLLM_LITE_ISA
