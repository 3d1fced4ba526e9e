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
    for (int first = 0; first < kPanel; first += kLanes) {
      FoursOfRows fours;
      for (int i = 0; i < kLanes / 4; ++i) {
        fours.fours[i] = reinterpret_cast<const char*>(rows[first + 4 * i]);
      }
      fours.stride = kQuantizedGroup;
      for (int line = 0; line < kGroupLines; line += 4) {
        BitsVec words[4];
        load_words(fours, 4 * line, words);
        for (int i = 0; i < 4; ++i) {
          store_words(lines[first / kHalfPanel][line + i] + first % kHalfPanel * 4, words[i]);
        }
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

// Byte `row` of one output's scales of group `group` of its block.
template <class Block>
int scale_byte(const uint8_t* block, int group, int row) {
  constexpr int kParts = Packed<Block>::kParts;
  if constexpr (Block::kScales == PartScales::kIntegers) {
    const IntegerScale s = Block::integer_scale(block, kParts == 1 ? group : group * 2 + row);
    if (kParts == 2) return s.scale | s.minimum << 4;
    return row == 0 ? s.scale : s.minimum;
  } else if constexpr (Block::kScales == PartScales::kOdd) {
    const int first = Block::odd(block, group * kParts);
    return kParts == 1 ? first : first | Block::odd(block, group * 2 + 1) << 4;
  } else {
    return Block::scale_byte(block, group * kParts + row);
  }
}

// One output's scales of group `group` of its block; `to` is the group's first byte.
template <class Block>
void write_scales(const uint8_t* block, int group, int output, uint8_t* to) {
  if constexpr (Block::kScales == PartScales::kHalves) {
    memcpy(to + output * 2, block + Block::kScaleAt, 2);
    if constexpr (Block::kHasMinimum) {
      memcpy(to + (kPanel + output) * 2, block + Block::kMinimumAt, 2);
    }
  } else if constexpr (Packed<Block>::kScaleRows > 0) {
    for (int row = 0; row < Packed<Block>::kScaleRows; ++row) {
      to[row * kPanel + output] = static_cast<uint8_t>(scale_byte<Block>(block, group, row));
    }
  }
}

// One output's halves of a block with two levels; `to` is the chunk's first byte.
template <class Block>
void write_halves(const uint8_t* block, int output, uint8_t* to) {
  const uint16_t half = block_half<Block>(block);
  memcpy(to + output * 2, &half, 2);
  if constexpr (Block::kHasMinimum) {
    memcpy(to + (kPanel + output) * 2, block + Block::kMinimumAt, 2);
  }
}

// One output's entries and signs of group `group` of its block; `to` is the first byte of codes.
template <class Block>
void write_entries(const uint8_t* block, int group, int output, uint8_t* to) {
  uint32_t above = 0;
  to += output;
  for (int i = 0; i < Block::kEntries; ++i, to += kPanel) {
    const int entry = Block::entry(block, group * Block::kEntries + i);
    *to = static_cast<uint8_t>(entry);
    above |= static_cast<uint32_t>(entry >> 8) << i * Block::kAbove;
  }
  for (int bits = 0; bits < Block::kEntries * Block::kAbove; bits += 8, to += kPanel) {
    *to = static_cast<uint8_t>(above >> bits);
  }
  if constexpr (Block::kIsSigned) {
    for (int i = 0; i < Block::kSignBytes; ++i, to += kPanel) {
      *to = static_cast<uint8_t>(Block::signs(block, group * Block::kSignBytes + i));
    }
  }
}

// Writes group `group` of a chunk's lines in base 3; `to` is the chunk's first line.
void write_ternary(const GroupCodes& codes, int group, uint8_t* to) {
  for (int half = 0; half < 2; ++half) {
    for (int i = 0; i < kGroupLines; ++i) {
      const int line = group * kGroupLines + i;
      uint8_t* bytes = to + (half * kTernaryLines + line / 5) * kLine;
      for (int k = 0; k < kLine; ++k) {
        bytes[k] = static_cast<uint8_t>(bytes[k] * 3 + codes.lines[half][i][k]);
      }
    }
  }
  if (group < kChunkGroups - 1) return;
  for (int line = 0; line < 2 * kTernaryLines; ++line) {
    // The last of a half has four digits.
    const int factor = line % kTernaryLines == kTernaryLines - 1 ? 3 : 1;
    for (int k = 0; k < kLine; ++k) {
      uint8_t& byte = to[line * kLine + k];
      byte = static_cast<uint8_t>((byte * factor * 256 + 242) / 243);
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
  // Elsewhere all bytes are written, and none is read before.
  if (num_outputs < kPanel || Layout::kIsTernary) memset(to, 0, Layout::panel_bytes(p.num_inputs));
  GroupCodes codes = {};
  uint8_t* chunk = to;
  const int64_t num_groups = p.num_inputs / kQuantizedGroup;
  for (int64_t g = 0; g < num_groups; ++g) {
    const uint8_t* blocks = rows + g / kBlockGroups * Block::kBytes;
    const int group = static_cast<int>(g % kBlockGroups);
    if (Block::kIsTwoLevel && group == 0) {
      chunk = to;
      to += Layout::kHeaderBytes;
    }
    uint8_t* planes = to + Layout::kScaleBytes;
    for (int output = 0; output < num_outputs; ++output) {
      const uint8_t* block = blocks + output * p.block_stride;
      if constexpr (Block::kIsTwoLevel) {
        if (group == 0) write_halves<Block>(block, output, chunk);
      }
      write_scales<Block>(block, group, output, to);
      if constexpr (Block::kIsBook) {
        write_entries<Block>(block, group, output, planes);
      } else {
        for (int part = 0; part < Layout::kParts; ++part) {
          Block::codes(block, group * Layout::kParts + part,
                       codes.rows[output] + part * Block::kPartSize);
        }
      }
    }
    if constexpr (!Block::kIsBook) {
      codes.make_lines();
      if constexpr (Layout::kIsTernary) write_ternary(codes, group, chunk + Layout::kHalvesBytes);
      for (int half = 0; half < 2; ++half) {
        if constexpr (Block::kLowBits > 0) {
          codes.write_plane<Block::kLowBits>(half, 0, planes + half * Layout::kLowBytes);
        }
        if constexpr (Block::kHighBits > 0) {
          codes.write_plane<Block::kHighBits>(
              half, Block::kLowBits, planes + 2 * Layout::kLowBytes + half * Layout::kHighBytes);
        }
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
