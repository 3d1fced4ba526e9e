// The loop of products of many bfloat16 rows by grouped codes, alone: no threads, no layers, rows and
// codes in the nearest caches. Prints JSON: for each name the nanoseconds of every round.
//
//     grouped_floor ROUNDS
#include <immintrin.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

namespace {

constexpr int kRows = 64, kOutputs = 32, kInputs = 128, kLanes = 16;
constexpr int kPairs = kInputs / 2;  // a word holds bfloat16 numbers of two inputs
constexpr int kVectors = kOutputs / kLanes;
// Rows of 2,048 inputs lie as far apart as a layer's, with their floats before their pairs.
constexpr int kLayerInputs = 2048;
constexpr int64_t kStride = kLayerInputs * 3 / 2 + 64;
constexpr int kRepeats = 400, kPasses = 5;

alignas(64) uint32_t numbers[kPairs * kOutputs];
alignas(64) uint8_t codes[kInputs * kOutputs];
alignas(64) uint16_t table[2 * kLanes];
alignas(64) float results[kRows * kOutputs];
alignas(64) float scales[kPairs * kOutputs];
std::vector<uint32_t> x(kRows* kStride);

// A book of 65,536 vectors of eight inputs, and indices as they come from memory.
constexpr int kVectorInputs = 8, kIndices = kInputs / kVectorInputs * kOutputs;
std::vector<uint16_t> book(65536 * kVectorInputs), indices(kRepeats* kIndices);
size_t next_index = 0;

__m512 multiply_add(__m512 sum, __m512i pairs, uint32_t of_row) {
  const __m512i broadcast = _mm512_set1_epi32(static_cast<int>(of_row));
  return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(pairs),
                          reinterpret_cast<__m512bh>(broadcast));
}

// kHeight rows by all outputs; their sums go to the totals as they are.
template <int kHeight>
__attribute__((noinline)) void multiply_whole(const uint32_t* rows, float* to) {
  __m512 totals[kHeight][kVectors];
  const uint32_t* from = numbers;
#pragma GCC unroll 16
  for (int r = 0; r < kHeight; ++r) {
    for (int k = 0; k < kVectors; ++k) {
      totals[r][k] = _mm512_loadu_ps(to + r * kOutputs + k * kLanes);
    }
  }
  for (int i = 0; i < kPairs; ++i, ++rows, from += kOutputs) {
    const __m512i first = _mm512_loadu_si512(from), second = _mm512_loadu_si512(from + kLanes);
#pragma GCC unroll 16
    for (int r = 0; r < kHeight; ++r) {
      const uint32_t value = rows[r * kStride];
      totals[r][0] = multiply_add(totals[r][0], first, value);
      totals[r][1] = multiply_add(totals[r][1], second, value);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < kHeight; ++r) {
    for (int k = 0; k < kVectors; ++k) {
      _mm512_storeu_ps(to + r * kOutputs + k * kLanes, totals[r][k]);
    }
  }
}

// The same, but the sums of a segment's even and odd pairs are scaled before they go to the totals.
template <int kHeight>
__attribute__((noinline)) void multiply_segments(const uint32_t* rows, int num_segments,
                                                 float* to) {
  __m512 totals[kHeight][kVectors];
  const uint32_t* from = numbers;
  const int count = kPairs / num_segments;
#pragma GCC unroll 16
  for (int r = 0; r < kHeight; ++r) {
    for (int k = 0; k < kVectors; ++k) {
      totals[r][k] = _mm512_loadu_ps(to + r * kOutputs + k * kLanes);
    }
  }
  for (int segment = 0; segment < num_segments; ++segment) {
    __m512 even[kHeight][kVectors], odd[kHeight][kVectors];
#pragma GCC unroll 16
    for (int r = 0; r < kHeight; ++r) {
      for (int k = 0; k < kVectors; ++k) even[r][k] = odd[r][k] = _mm512_setzero_ps();
    }
    for (int i = count; i > 0; i -= 2, rows += 2) {
#pragma GCC unroll 2
      for (int next = 0; next < 2; ++next, from += kOutputs) {
        const __m512i first = _mm512_loadu_si512(from), second = _mm512_loadu_si512(from + kLanes);
#pragma GCC unroll 16
        for (int r = 0; r < kHeight; ++r) {
          const uint32_t value = rows[r * kStride + next];
          auto& sums = next == 0 ? even[r] : odd[r];
          sums[0] = multiply_add(sums[0], first, value);
          sums[1] = multiply_add(sums[1], second, value);
        }
      }
    }
    const float* of = scales + segment * kOutputs;
    const __m512 scale[kVectors] = {_mm512_loadu_ps(of), _mm512_loadu_ps(of + kLanes)};
#pragma GCC unroll 16
    for (int r = 0; r < kHeight; ++r) {
      for (int k = 0; k < kVectors; ++k) {
        totals[r][k] = _mm512_fmadd_ps(even[r][k] + odd[r][k], scale[k], totals[r][k]);
      }
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < kHeight; ++r) {
    for (int k = 0; k < kVectors; ++k) {
      _mm512_storeu_ps(to + r * kOutputs + k * kLanes, totals[r][k]);
    }
  }
}

// Codes of 4 bits: a word holds four pairs of inputs of an output, each looked up at once.
__attribute__((noinline)) void make_from_four_bits() {
  constexpr int kPairsOfWord = 4;
  const __m512i values = _mm512_load_si512(table);
  const uint8_t* from = codes;
  for (int i = 0; i < kPairs; i += kPairsOfWord) {
    for (int k = 0; k < kVectors; ++k, from += 64) {
      const __m512i words = _mm512_loadu_si512(from);
#pragma GCC unroll 4
      for (int p = 0; p < kPairsOfWord; ++p) {
        const __m512i pairs = _mm512_permutexvar_epi16(_mm512_srli_epi32(words, 4 * p), values);
        _mm512_store_si512(numbers + (i + p) * kOutputs + k * kLanes, pairs);
      }
    }
  }
}

// Bytes of e4m3: exponents are moved, and the eight that are subnormal looked up.
__attribute__((noinline)) void make_from_float8() {
  alignas(64) static const uint16_t kSubnormal[2 * kLanes] = {0,      0x3b00, 0x3b80, 0x3bc0,
                                                              0x3c00, 0x3c20, 0x3c40, 0x3c60};
  const __m512i subnormal = _mm512_load_si512(kSubnormal);
  const uint8_t* from = codes;
  for (int i = 0; i < kPairs * kVectors; ++i, from += 2 * kLanes) {
    const __m512i bytes =
        _mm512_cvtepu8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
    const __m512i moved =
        _mm512_and_si512(_mm512_slli_epi16(bytes, 4), _mm512_set1_epi16(0x7f0));
    const __m512i normal = _mm512_add_epi16(moved, _mm512_set1_epi16(120 << 7));
    const __mmask32 is_small = _mm512_testn_epi16_mask(bytes, _mm512_set1_epi16(0x78));
    const __m512i found = _mm512_mask_permutexvar_epi16(normal, is_small, bytes, subnormal);
    const __m512i sign =
        _mm512_and_si512(_mm512_slli_epi16(bytes, 8), _mm512_set1_epi16(int16_t(0x8000)));
    _mm512_store_si512(numbers + i * kLanes, _mm512_or_si512(found, sign));
  }
}

// Codes of kBits by pairs, as above.
template <int kBits>
struct Coded {
  static constexpr int kPairsOfWord = 16 / kBits, kBytes = kInputs * kOutputs * kBits / 8;
  __m512i values = _mm512_load_si512(table);

  // Pair `p` of a word, known when this is compiled.
  __m512i pairs(int word, int k, int p) const {
    const __m512i words = _mm512_loadu_si512(codes + (word * kVectors + k) * 64);
    return _mm512_permutexvar_epi16(_mm512_srli_epi32(words, kBits * p), values);
  }
};

// One row by numbers as they are made; a segment's even and odd pairs have sums of their own.
template <int kBits>
__attribute__((noinline)) void multiply_one_row(const uint32_t* row, int num_segments) {
  const Coded<kBits> coded;
  constexpr int kPairsOfWord = Coded<kBits>::kPairsOfWord;
  const int count = kPairs / num_segments / kPairsOfWord;
  __m512 totals[kVectors] = {_mm512_loadu_ps(results), _mm512_loadu_ps(results + kLanes)};
  for (int segment = 0, word = 0; segment < num_segments; ++segment) {
    __m512 even[kVectors] = {}, odd[kVectors] = {};
    for (int i = 0; i < count; ++i, ++word, row += kPairsOfWord) {
#pragma GCC unroll 8
      for (int p = 0; p < kPairsOfWord; ++p) {
        auto& sums = p % 2 == 0 ? even : odd;
        for (int k = 0; k < kVectors; ++k) {
          sums[k] = multiply_add(sums[k], coded.pairs(word, k, p), row[p]);
        }
      }
    }
    for (int k = 0; k < kVectors; ++k) {
      const __m512 scale = _mm512_loadu_ps(scales + segment * kOutputs + k * kLanes);
      totals[k] = _mm512_fmadd_ps(even[k] + odd[k], scale, totals[k]);
    }
  }
  for (int k = 0; k < kVectors; ++k) _mm512_storeu_ps(results + k * kLanes, totals[k]);
}

// Nanoseconds of `kRows` rows by the inputs and outputs of a panel: the least of a few passes, each
// over all inputs of the rows.
template <class Step>
double nanoseconds(Step step) {
  double least = 1e30;
  for (int pass = 0; pass < kPasses; ++pass) {
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < kRepeats; ++i) step(x.data() + i % (kLayerInputs / kInputs) * kPairs);
    const std::chrono::duration<double, std::nano> passed =
        std::chrono::steady_clock::now() - begin;
    least = std::min(least, passed.count() / kRepeats);
  }
  return least;
}

// The numbers of a book: four vectors to a register, whose words are turned.
__attribute__((noinline)) void make_from_book() {
  const uint16_t* index = indices.data() + next_index;
  next_index = (next_index + kIndices) % indices.size();
  for (int pair = 0; pair < kPairs; pair += kVectorInputs / 2) {
    for (int k = 0; k < kVectors; ++k, index += kLanes) {
      __m512i found[4];
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) {
        const auto vector = [&](int lane) {
          const uint16_t* from = book.data() + index[4 * lane + j] * kVectorInputs;
          return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
        };
        found[j] = _mm512_castsi128_si512(vector(0));
        found[j] = _mm512_inserti32x4(found[j], vector(1), 1);
        found[j] = _mm512_inserti32x4(found[j], vector(2), 2);
        found[j] = _mm512_inserti32x4(found[j], vector(3), 3);
      }
      const __m512i low[2] = {_mm512_unpacklo_epi32(found[0], found[1]),
                              _mm512_unpacklo_epi32(found[2], found[3])};
      const __m512i high[2] = {_mm512_unpackhi_epi32(found[0], found[1]),
                               _mm512_unpackhi_epi32(found[2], found[3])};
      uint32_t* to = numbers + pair * kOutputs + k * kLanes;
      _mm512_storeu_si512(to, _mm512_unpacklo_epi64(low[0], low[1]));
      _mm512_storeu_si512(to + kOutputs, _mm512_unpackhi_epi64(low[0], low[1]));
      _mm512_storeu_si512(to + 2 * kOutputs, _mm512_unpacklo_epi64(high[0], high[1]));
      _mm512_storeu_si512(to + 3 * kOutputs, _mm512_unpackhi_epi64(high[0], high[1]));
    }
  }
}

template <int kHeight>
void whole(const uint32_t* rows) {
  int row = 0;
  for (; row + kHeight <= kRows; row += kHeight) {
    multiply_whole<kHeight>(rows + row * kStride, results + row * kOutputs);
  }
  constexpr int kRest = kRows % kHeight;
  if constexpr (kRest > 0) {
    multiply_whole<kRest>(rows + row * kStride, results + row * kOutputs);
  }
}

void in_segments(const uint32_t* rows, int num_segments) {
  constexpr int kHeight = 4;
  for (int row = 0; row < kRows; row += kHeight) {
    multiply_segments<kHeight>(rows + row * kStride, num_segments, results + row * kOutputs);
  }
}

struct Measured {
  std::string name;
  std::vector<double> rounds;
};

}  // namespace

int main(int argc, char** argv) {
  const int num_rounds = argc > 1 ? std::atoi(argv[1]) : 1;
  // Small numbers of bfloat16, whose sums stay finite.
  std::fill(x.begin(), x.end(), 0x38003800u);
  std::fill(table, table + 2 * kLanes, uint16_t{0x3800});
  std::fill(scales, scales + kPairs * kOutputs, 1.0f);
  for (int i = 0; i < kInputs * kOutputs; ++i) codes[i] = static_cast<uint8_t>(i * 37 % 120);
  std::fill(book.begin(), book.end(), uint16_t{0x3800});
  uint32_t random = 1;
  for (uint16_t& index : indices) index = (random = random * 1664525 + 1013904223) >> 16;
  std::vector<Measured> all;
  const auto measure = [&](const std::string& name, auto step) {
    const auto is_it = [&](const Measured& m) { return m.name == name; };
    auto found = std::find_if(all.begin(), all.end(), is_it);
    if (found == all.end()) found = all.insert(all.end(), Measured{name, {}});
    found->rounds.push_back(nanoseconds(step));
  };
  for (int round = 0; round < num_rounds; ++round) {
    measure("one row, 4 bits 128", [](const uint32_t* row) { multiply_one_row<4>(row, 1); });
    measure("one row, 4 bits 64", [](const uint32_t* row) { multiply_one_row<4>(row, 2); });
    measure("one row, 4 bits 32", [](const uint32_t* row) { multiply_one_row<4>(row, 4); });
    measure("one row, 4 bits 16", [](const uint32_t* row) { multiply_one_row<4>(row, 8); });
    measure("one row, 2 bits 64", [](const uint32_t* row) { multiply_one_row<2>(row, 2); });
    measure("book alone", [](const uint32_t*) { make_from_book(); });
    measure("book 64", [](const uint32_t* rows) {
      make_from_book();
      in_segments(rows, 1);
    });
    make_from_four_bits();
    std::fill(results, results + kRows * kOutputs, 0.0f);
    measure("whole 4", whole<4>);
    measure("whole 6", whole<6>);
    measure("whole 8", whole<8>);
    measure("whole 12", whole<12>);
    for (int segment = kInputs; segment >= 16; segment /= 2) {
      const int count = kInputs / segment;
      const std::string suffix = " " + std::to_string(segment);
      measure("segments" + suffix, [=](const uint32_t* rows) { in_segments(rows, count); });
      measure("four_bits" + suffix, [=](const uint32_t* rows) {
        make_from_four_bits();
        in_segments(rows, count);
      });
      measure("float8" + suffix, [=](const uint32_t* rows) {
        make_from_float8();
        in_segments(rows, count);
      });
    }
  }
  std::printf("{");
  for (size_t i = 0; i < all.size(); ++i) {
    std::printf("%s\"%s\": [", i ? ", " : "", all[i].name.c_str());
    for (size_t k = 0; k < all[i].rounds.size(); ++k) {
      std::printf("%s%.2f", k ? ", " : "", all[i].rounds[k]);
    }
    std::printf("]");
  }
  std::printf("}\n");
  return 0;
}
