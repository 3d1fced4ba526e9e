// Lays out the codes of grouped weights in panels (kernels/grouped_codes.h).
#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "cpu/ops.h"
#include "cpu/thread_pool.h"
#include "cpu/turned_bytes.h"

namespace vllm_lite {

namespace {

constexpr int kUnit = static_cast<int>(kCodesOfUnit), kHalf = kPanel / 2;
// Codes that one thread lays out in some tens of microseconds.
constexpr int64_t kCodesOfRange = 256 * 1024;

// The codes of a panel for a unit of inputs.
struct Codes {
  alignas(64) uint8_t of[kPanel][kUnit];
};

constexpr uint64_t each_byte(int value) { return value * 0x0101010101010101u; }

uint64_t load_eight(const uint8_t* from) {
  uint64_t eight;
  memcpy(&eight, from, sizeof eight);
  return eight;
}

// Adds a plane's bits of an output to its codes; `row` has those of two units.
template <int kBits, int kShift>
void add_plane(const uint8_t* row, int unit, uint8_t (&codes)[kUnit]) {
  if constexpr (kBits == 8) {
    memcpy(codes, row + unit * kUnit, kUnit);
  } else {
    constexpr int kBytes = 8 * kBits;
    for (int i = 0; i < kUnit; i += 8) {
      const int taken = (i / kBytes * 2 + unit) * kBits;
      const uint64_t found = load_eight(row + i % kBytes) >> taken & each_byte((1 << kBits) - 1);
      const uint64_t eight = kShift == 0 ? found : load_eight(codes + i) | found << kShift;
      memcpy(codes + i, &eight, sizeof eight);
    }
  }
}

// kBits of eight codes, from bit kShift on, side by side; the first one lowest.
template <int kBits, int kShift>
uint64_t joined(const uint8_t* codes) {
  constexpr int kStep = 8 - kBits;
  constexpr uint64_t kTwo = ((1ull << 2 * kBits) - 1) * 0x0001000100010001;
  constexpr uint64_t kFour = ((1ull << 4 * kBits) - 1) * 0x0000000100000001;
  uint64_t eight = load_eight(codes) >> kShift & each_byte((1 << kBits) - 1);
  eight = (eight | eight >> kStep) & kTwo;
  eight = (eight | eight >> 2 * kStep) & kFour;
  return (eight | eight >> 4 * kStep) & ((1ull << 8 * kBits) - 1);
}

// Lines of a plane: of each half panel, a word of 32 / kBits codes for each output. In a plane of higher
// bits the first four of every eight inputs are in the lower half of the word.
template <int kBits, int kShift>
uint8_t* write_lines(const Codes& codes, uint8_t* to) {
  constexpr int kCount = 32 / kBits;
  for (int half = 0; half < 2; ++half) {
    for (int line = 0; line < kBits; ++line) {
      for (int i = 0; i < kHalf; ++i, to += 4) {
        uint64_t word = 0;
        for (int first = 0; first < kCount; first += 8) {
          const uint8_t* from = codes.of[half * kHalf + i] + line * kCount + first;
          const uint64_t eight = joined<kBits, kShift>(from);
          if constexpr (kShift == 0) {
            word |= eight << first * kBits;
          } else {
            word |= (eight & ((1u << 4 * kBits) - 1)) << first / 2 * kBits;
            word |= eight >> 4 * kBits << (16 + first / 2 * kBits);
          }
        }
        memcpy(to, &word, 4);
      }
    }
  }
  return to;
}

// Of each input of a unit, the codes of half a panel.
void turn_unit(const uint8_t (*rows)[kUnit], Bytes (&inputs)[kUnit]) {
  for (int first = 0; first < kUnit; first += kHalf) {
    for (int i = 0; i < kHalf; ++i) memcpy(&inputs[first + i], rows[i] + first, sizeof(Bytes));
    turn(inputs + first);
  }
}

// Three bits: half words of five codes each, which share the bits of a sixteenth.
void write_threes(const Bytes (&inputs)[kUnit], uint8_t* to) {
  for (int word = 0; word < 3; ++word) {
    uint16_t halves[kHalf][2] = {};
    for (int upper = 0; upper < 2; ++upper) {
      const auto pair = [&](int i) { return inputs[i / 8 * 16 + upper * 8 + i % 8]; };
      for (int k = 0; k < 5; ++k) {
        const Bytes codes = pair(5 * word + k);
        for (int i = 0; i < kHalf; ++i) halves[i][upper] |= codes[i] << 3 * k;
      }
      const Bytes last = pair(15) >> word & 1;
      for (int i = 0; i < kHalf; ++i) halves[i][upper] |= last[i] << 15;
    }
    memcpy(to + word * sizeof halves, halves, sizeof halves);
  }
}

// Bytes of 8 bits: of each input or, as floats, of every two, those of one output after another.
void write_bytes(const Bytes (&inputs)[kUnit], CodeKind kind, uint8_t* to) {
  const bool are_pairs = kind == CodeKind::kFloat8E4M3 || kind == CodeKind::kFloat8E5M2;
  for (int i = 0; i < kUnit; i += 2, to += 2 * sizeof(Bytes)) {
    Bytes two[2] = {inputs[i], inputs[i + 1]};
    if (are_pairs) {
      two[0] = lower(inputs[i], inputs[i + 1]);
      two[1] = upper(inputs[i], inputs[i + 1]);
    } else if (kind == CodeKind::kInt8) {
      for (Bytes& codes : two) codes ^= 128;
    }
    memcpy(to, two, sizeof two);
  }
}

template <int kLow, int kHigh>
void pack_panel(const PackGrouped& p, int64_t panel) {
  constexpr int kBits = kLow + kHigh;
  const int64_t units = ceil_divide(p.num_inputs, kCodesOfUnit), first = panel * kPanel;
  const int64_t count = std::min<int64_t>(kPanel, p.num_outputs - first);
  uint8_t* to = p.packed + panel * units * kPanel * kUnit * kBits / 8;
  for (int64_t unit = 0; unit < units; ++unit, to += kPanel * kUnit * kBits / 8) {
    Codes codes{};
    const int64_t row = unit / 2 * p.num_outputs + first;
    for (int64_t i = 0; i < count; ++i) {
      add_plane<kLow, 0>(p.low + (row + i) * 8 * kLow, unit % 2, codes.of[i]);
      if constexpr (kHigh > 0) {
        add_plane<kHigh, kLow>(p.high + (row + i) * 8 * kHigh, unit % 2, codes.of[i]);
      }
    }
    if constexpr (kBits == 3 || kBits == 8) {
      for (int half = 0; half < 2; ++half) {
        Bytes inputs[kUnit];
        turn_unit(codes.of + half * kHalf, inputs);
        uint8_t* lines = to + half * kHalf * kUnit * kBits / 8;
        if constexpr (kBits == 3) write_threes(inputs, lines);
        if constexpr (kBits == 8) write_bytes(inputs, p.kind, lines);
      }
    } else {
      uint8_t* high = write_lines<kLow, 0>(codes, to);
      if constexpr (kHigh > 0) write_lines<kHigh, kLow>(codes, high);
    }
  }
}

auto packing_of(int64_t bits) {
  switch (bits) {
    case 2: return pack_panel<2, 0>;
    case 3: return pack_panel<2, 1>;
    case 4: return pack_panel<4, 0>;
    case 5: return pack_panel<4, 1>;
    case 6: return pack_panel<4, 2>;
    case 8: return pack_panel<8, 0>;
  }
  throw std::invalid_argument("codes have 2, 3, 4, 5, 6 or 8 bits");
}

}  // namespace

void pack_grouped(const PackGrouped& p) {
  const auto pack = packing_of(p.bits);
  parallel_for(ceil_divide(p.num_outputs, kPanel),
               std::max<int64_t>(1, kCodesOfRange / (kPanel * p.num_inputs)),
               [&](int64_t begin, int64_t end) {
                 for (int64_t panel = begin; panel < end; ++panel) pack(p, panel);
               });
}

}  // namespace vllm_lite
