// Takes the codes of a checkpoint's words apart, each to a byte of its output's row.
#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "cpu/ops.h"
#include "cpu/turned_bytes.h"

namespace vllm_lite {

namespace {

// Words that fill a cache line, in which those of neighbouring outputs mostly lie.
constexpr int kLine = 16;

// The kBits of eight codes, side by side, to a byte each.
template <int kBits>
uint64_t apart(uint64_t eight) {
  constexpr int kStep = 8 - kBits;
  constexpr uint64_t kAll = kBits == 8 ? ~0ull : (1ull << 8 * kBits % 64) - 1;
  constexpr uint64_t kFour = ((1ull << 4 * kBits) - 1) * 0x0000000100000001;
  constexpr uint64_t kTwo = ((1ull << 2 * kBits) - 1) * 0x0001000100010001;
  constexpr uint64_t kOne = ((1ull << kBits) - 1) * 0x0101010101010101;
  eight &= kAll;
  eight = (eight | eight << 4 * kStep) & kFour;
  eight = (eight | eight << 2 * kStep) & kTwo;
  return (eight | eight << kStep) & kOne;
}

// Words of one output each: kBits of them have 32 codes, which may cross from one to the next.
template <int kBits>
void unpack_inputs(const UnpackWords& p) {
  constexpr int kWords = 4 * kBits, kCodes = 128;
  const int64_t num_words = ceil_divide(p.num_inputs * kBits, 32);
  for (int64_t output = 0; output < p.num_outputs; output += kLine) {
    const int64_t outputs = std::min<int64_t>(kLine, p.num_outputs - output);
    for (int64_t input = 0; input < p.num_inputs; input += kCodes) {
      const int64_t first = input * kBits / 32, words = std::min(num_words - first, int64_t{kWords});
      uint32_t taken[kLine][kWords + 1] = {};
      for (int64_t w = 0; w < words; ++w) {
        const uint32_t* from = p.words + output * p.output_stride + (first + w) * p.input_stride;
        for (int64_t i = 0; i < outputs; ++i) taken[i][w] = from[i * p.output_stride];
      }
      for (int64_t i = 0; i < outputs; ++i) {
        uint64_t codes[kCodes / 8];
        for (int j = 0; j < kCodes / 8; ++j) {
          uint64_t eight;
          memcpy(&eight, reinterpret_cast<const uint8_t*>(taken[i]) + j * kBits, sizeof eight);
          codes[j] = apart<kBits>(eight);
        }
        memcpy(p.codes + (output + i) * p.codes_stride + input, codes,
               std::min<int64_t>(kCodes, p.num_inputs - input));
      }
    }
  }
}

// Words of eight outputs each, as AWQ packs them: those of even ones first.
void unpack_outputs(const UnpackWords& p) {
  constexpr int kOutputs = 8 * kLine, kInputs = 64, kRows = sizeof(Bytes);
  const int64_t row_bytes = ceil_divide(p.num_outputs, 8) * 4;
  for (int64_t output = 0; output < p.num_outputs; output += kOutputs) {
    const int64_t outputs = std::min<int64_t>(kOutputs, p.num_outputs - output);
    for (int64_t input = 0; input < p.num_inputs; input += kInputs) {
      const int64_t inputs = std::min<int64_t>(kInputs, p.num_inputs - input);
      const auto* from = reinterpret_cast<const uint8_t*>(p.words + input * p.input_stride);
      alignas(64) uint8_t tile[kOutputs][kInputs];
      for (int64_t first = 0; first < inputs; first += kRows) {
        for (int64_t byte = 0; byte < ceil_divide(outputs, 8) * 4; byte += kRows) {
          const int64_t place = output / 2 + byte;
          const int64_t rows = std::min<int64_t>(kRows, inputs - first);
          const uint8_t* row = from + first * p.input_stride * 4 + place;
          Bytes bytes[kRows] = {};
          for (int64_t i = 0; i < rows; ++i, row += p.input_stride * 4) {
            if (row_bytes - place >= kRows) {
              memcpy(&bytes[i], row, sizeof(Bytes));
            } else {
              memcpy(&bytes[i], row, row_bytes - place);
            }
          }
          turn(bytes);
          for (int k = 0; k < kRows; ++k) {
            const Bytes codes[2] = {bytes[k] & 15, bytes[k] >> 4};
            const int64_t even = 2 * (byte + k / 4 * 4) + (k % 4 < 2 ? k % 4 * 4 : k % 4 * 4 - 7);
            memcpy(&tile[even][first], &codes[0], sizeof(Bytes));
            memcpy(&tile[even + 2][first], &codes[1], sizeof(Bytes));
          }
        }
      }
      for (int64_t i = 0; i < outputs; ++i) {
        uint8_t* to = p.codes + (output + i) * p.codes_stride + input;
        inputs == kInputs ? memcpy(to, tile[i], kInputs) : memcpy(to, tile[i], inputs);
      }
    }
  }
}

}  // namespace

void unpack_words(const UnpackWords& p) {
  if (p.are_outputs) return unpack_outputs(p);
  switch (p.bits) {
    case 2: return unpack_inputs<2>(p);
    case 3: return unpack_inputs<3>(p);
    case 4: return unpack_inputs<4>(p);
    case 8: return unpack_inputs<8>(p);
  }
  throw std::invalid_argument("words are unpacked to codes of 2, 3, 4 or 8 bits");
}

}  // namespace vllm_lite
