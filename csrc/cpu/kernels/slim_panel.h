// Panels of bfloat16 weights in 12 bits each, without loss, and how they are unpacked.
//
// The weights of a matrix have few different exponents. A slim panel is a panel (linear.cpp) in
// groups of four lines of 64 bytes, which become three: a byte of sign and mantissa for each weight
// in order, and a line of 16-bit words, word k with the codes of weight k of the four lines from its
// lowest bits up. Codes 0 to 14 are the largest exponent that has a code and those below it; code
// 15 is exponent zero, of zeros and subnormal numbers. Weights of any other exponent are exceptions:
// a list for each panel, in order, which ends with a place beyond all.
#pragma once

#include "cpu/kernels/simd.h"

namespace vllm_lite::VLLM_LITE_ISA {

constexpr int64_t kSlimLine = 32;  // weights
constexpr int64_t kSlimLines = 4;  // of a group
constexpr int64_t kUnpackedGroupBytes = kSlimLines * kSlimLine * sizeof(BFloat16);
constexpr int64_t kSlimGroupSize = kSlimGroupInputs * kPanel;  // weights
static_assert(kSlimLines * kSlimLine == kSlimGroupSize);
constexpr int kNumSlimCodes = 16;
constexpr int kZeroCode = kNumSlimCodes - 1;
constexpr uint32_t kNoPlace = 0xffffffff;

struct alignas(kSlimHeaderBytes) SlimHeader {
  uint16_t exponents[kNumSlimCodes];  // by code, as they stand in a bfloat16
  int64_t exceptions;                 // bytes from here to the list
};
static_assert(sizeof(SlimHeader) == kSlimHeaderBytes);

// As it lies in memory.
struct SlimGroup {
  uint8_t signs_and_mantissas[kSlimLines][kSlimLine];
  uint16_t codes[kSlimLine];
};
static_assert(sizeof(SlimGroup) == kSlimGroupBytes);

#if defined(__AVX512BW__)
typedef uint16_t WordVec __attribute__((vector_size(64)));

// By code, twice: a shuffle takes the lowest five bits of an index, and a code is the lowest four.
using SlimExponents = WordVec;
static inline SlimExponents load_exponents(const SlimHeader& header) {
  WordVec table;
  memcpy(&table, header.exponents, 32);
  memcpy(reinterpret_cast<char*>(&table) + 32, header.exponents, 32);
  return table;
}

static inline void unpack_line(const SlimGroup* group, int line, SlimExponents exponents,
                               BFloat16* to) {
  WordVec codes;
  memcpy(&codes, group->codes, sizeof codes);
  __m256i bytes;
  memcpy(&bytes, group->signs_and_mantissas[line], sizeof bytes);
  const __m512i exponent = _mm512_maskz_permutexvar_epi16(
      0xffffffff, bit_cast<__m512i>(codes >> (4 * line)), bit_cast<__m512i>(exponents));
  // The sign fills all that is above the mantissa, and is kept in its own place.
  const __m512i widened = _mm512_maskz_cvtepi8_epi16(0xffffffff, bytes);
  constexpr int kFirstAndSecondOrThird = 0xea;
  const __m512i weights = _mm512_ternarylogic_epi32(widened, _mm512_set1_epi16(short(0x807f)),
                                                    exponent, kFirstAndSecondOrThird);
  memcpy(to, &weights, sizeof weights);
}
#else
using SlimExponents = const uint16_t*;
static inline SlimExponents load_exponents(const SlimHeader& header) { return header.exponents; }

static inline void unpack_line(const SlimGroup* group, int line, SlimExponents exponents,
                               BFloat16* to) {
  for (int64_t k = 0; k < kSlimLine; ++k) {
    const uint16_t byte = group->signs_and_mantissas[line][k];
    const int code = group->codes[k] >> (4 * line) & (kNumSlimCodes - 1);
    to[k].bits = static_cast<uint16_t>((byte & 0x80) << 8 | (byte & 0x7f) | exponents[code]);
  }
}
#endif

// How far ahead memory is asked for every line: the hardware's own prefetcher stops where a page
// ends.
constexpr int64_t kBytesAhead = 6144;

// One half of a group: the lines of a pair of inputs.
static inline void unpack_pair(const SlimGroup* group, int pair, SlimExponents exponents,
                               BFloat16* to) {
  const char* ahead = reinterpret_cast<const char*>(group) + kBytesAhead;
  __builtin_prefetch(ahead + pair * 128);
  if (pair == 0) __builtin_prefetch(ahead + 64);
  unpack_line(group, 2 * pair, exponents, to + 2 * pair * kSlimLine);
  unpack_line(group, 2 * pair + 1, exponents, to + (2 * pair + 1) * kSlimLine);
}

// Inputs of a panel, in groups that follow one another, and where they go.
struct SlimChunk {
  const SlimGroup* from;
  BFloat16* to;
  int64_t num_groups;
  SlimExponents exponents;
  int64_t first_input;
  int64_t num_inputs;
  bool is_last;  // of its panel
};

// Unpacks groups [begin, end).
static inline void unpack_groups(const SlimChunk& chunk, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; ++i) {
    unpack_pair(chunk.from + i, 0, chunk.exponents, chunk.to + i * kSlimGroupSize);
    unpack_pair(chunk.from + i, 1, chunk.exponents, chunk.to + i * kSlimGroupSize);
  }
}

// Goes through slim panels, a chunk of inputs at a time. A product of one chunk may unpack the next
// on the way: memory and the units that unpack work while others multiply.
class SlimReader {
 public:
  SlimReader(const Linear& p, int64_t begin_panel, int64_t end_panel)
      : num_inputs_(p.num_inputs),
        num_panels_(end_panel - begin_panel),
        panel_(static_cast<const char*>(p.packed_weight) +
               begin_panel * slim_panel_bytes(p.num_inputs)) {
    if (num_panels_ == 0) return;
    for (int64_t i = 0; i < kBytesAhead; i += 64) __builtin_prefetch(panel_ + i);
    start_panel();
  }

  // The next chunk, of `size` inputs (whole groups) unless a panel ends before. It is to be unpacked
  // to `to`. Without groups after the last.
  SlimChunk next(BFloat16* to, int64_t size) const {
    const auto* groups = reinterpret_cast<const SlimGroup*>(panel_ + kSlimHeaderBytes);
    const int64_t left = num_panels_ > 0 ? num_inputs_ - input_ : 0;
    const int64_t count = min_of(left, size);
    return {groups + input_ / kSlimGroupInputs,
            to,
            ceil_divide(count, kSlimGroupInputs),
            exponents_,
            input_,
            count,
            count == left};
  }

  // Unpacks what next() told and is not `done`, puts the exceptions in and goes on.
  void finish(const SlimChunk& chunk, int64_t done) {
    if (chunk.num_groups == 0) return;
    unpack_groups(chunk, done, chunk.num_groups);
    const int64_t first = input_ * kPanel, end = first + chunk.num_groups * kSlimGroupSize;
    for (; exception_->place < end; ++exception_) {
      chunk.to[exception_->place - first].bits = static_cast<uint16_t>(exception_->bits);
    }
    input_ += chunk.num_inputs;
    if (!chunk.is_last) return;
    panel_ += slim_panel_bytes(num_inputs_);
    input_ = 0;
    if (--num_panels_ > 0) start_panel();
  }

 private:
  void start_panel() {
    const auto* header = reinterpret_cast<const SlimHeader*>(panel_);
    exponents_ = load_exponents(*header);
    exception_ = reinterpret_cast<const SlimException*>(panel_ + header->exceptions);
  }

  int64_t num_inputs_;
  int64_t num_panels_;  // left
  const char* panel_;
  int64_t input_ = 0;  // of the panel: where the next chunk starts
  SlimExponents exponents_{};
  const SlimException* exception_ = nullptr;
};

}  // namespace vllm_lite::VLLM_LITE_ISA
