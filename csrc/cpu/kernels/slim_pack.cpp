// Packs bfloat16 weights into slim panels; see slim_panel.h for the layout.
#include "cpu/kernels/kernels.h"
#include "cpu/kernels/slim_panel.h"

namespace vllm_lite::VLLM_LITE_ISA {
namespace {

constexpr int kNumExponents = 256;
// Counted apart, so that equal exponents side by side do not wait for each other.
constexpr int kNumCounters = 4;

static inline int exponent_of(uint32_t bits) { return bits >> 7 & (kNumExponents - 1); }

// Rows of a weight that are a panel's outputs.
struct PanelRows {
  const BFloat16* first;
  int64_t stride;
  int64_t count;

  PanelRows(const PackLinear& p, int64_t panel)
      : first(static_cast<const BFloat16*>(p.weight) + panel * kPanel * p.weight_stride),
        stride(p.weight_stride),
        count(min_of<int64_t>(kPanel, p.num_outputs - panel * kPanel)) {}
};

void count_exponents(const PanelRows& rows, int64_t num_inputs, int64_t (&counts)[kNumExponents]) {
  uint32_t counters[kNumCounters][kNumExponents] = {};
  for (int64_t r = 0; r < rows.count; ++r) {
    const BFloat16* row = rows.first + r * rows.stride;
    int64_t i = 0;
    for (; i + kNumCounters <= num_inputs; i += kNumCounters) {
      uint64_t four;
      static_assert(sizeof four == kNumCounters * sizeof(BFloat16));
      memcpy(&four, row + i, sizeof four);
#pragma GCC unroll 4
      for (int k = 0; k < kNumCounters; ++k) {
        ++counters[k][exponent_of(static_cast<uint32_t>(four >> 16 * k))];
      }
    }
    for (; i < num_inputs; ++i) ++counters[0][exponent_of(row[i].bits)];
  }
  for (int e = 0; e < kNumExponents; ++e) {
    counts[e] = 0;
    for (int k = 0; k < kNumCounters; ++k) counts[e] += counters[k][e];
  }
}

// The plan that leaves the fewest exceptions.
SlimPlan plan_panel(const int64_t (&counts)[kNumExponents]) {
  int64_t covered = 0, total = 0, most = -1;
  SlimPlan plan = {};
  for (int e = 1; e < kNumExponents; ++e) {
    total += counts[e];
    covered += counts[e];
    if (e > kZeroCode) covered -= counts[e - kZeroCode];
    if (covered > most) {
      most = covered;
      plan.largest_exponent = e;
    }
  }
  plan.num_exceptions = total - most;
  return plan;
}

// The unpacked group from `input` on, as the lines of pairs that it is; what is missing is zero.
void gather_group(const PanelRows& rows, int64_t input, int64_t num_inputs,
                  uint32_t (&pairs)[2][kPanel]) {
  const int64_t count = min_of(kSlimGroupInputs, num_inputs - input);
  if (count < kSlimGroupInputs || rows.count < kPanel) memset(pairs, 0, sizeof pairs);
  for (int64_t r = 0; r < rows.count; ++r) {
    const BFloat16* from = rows.first + r * rows.stride + input;
    uint32_t both[2] = {};
    if (count == kSlimGroupInputs) {
      memcpy(both, from, sizeof both);
    } else {
      memcpy(both, from, count * sizeof(BFloat16));
    }
    pairs[0][r] = both[0];
    pairs[1][r] = both[1];
  }
}

// Whether all weights have codes.
bool encode_group(const uint16_t (&weights)[kSlimLines][kSlimLine], int largest, SlimGroup& group) {
  uint16_t exceptional = 0;
  memset(group.codes, 0, sizeof group.codes);
  for (int line = 0; line < kSlimLines; ++line) {
    for (int64_t k = 0; k < kSlimLine; ++k) {
      const uint16_t bits = weights[line][k];
      const uint16_t exponent = bits >> 7 & 0xff;
      const uint16_t distance = static_cast<uint16_t>(largest - exponent);
      const bool has_code = distance < kZeroCode && exponent != 0;
      exceptional |= static_cast<uint16_t>(!has_code && exponent != 0);
      const uint16_t code = has_code ? distance : kZeroCode;
      group.codes[k] = static_cast<uint16_t>(group.codes[k] | code << (4 * line));
      group.signs_and_mantissas[line][k] = static_cast<uint8_t>((bits >> 8 & 0x80) | (bits & 0x7f));
    }
  }
  return exceptional == 0;
}

void pack_panel(const PackLinear& p, const SlimPlan& plan, int64_t panel) {
  const int64_t offset = panel * slim_panel_bytes(p.num_inputs);
  char* packed = static_cast<char*>(p.packed_weight);
  const int largest = static_cast<int>(plan.largest_exponent);
  SlimHeader header = {};
  for (int code = 0; code < kZeroCode; ++code) {
    header.exponents[code] = static_cast<uint16_t>(max_of(largest - code, 0) << 7);
  }
  header.exceptions = plan.exceptions - offset;
  memcpy(packed + offset, &header, sizeof header);

  auto* group = reinterpret_cast<SlimGroup*>(packed + offset + kSlimHeaderBytes);
  auto* exception = reinterpret_cast<SlimException*>(packed + plan.exceptions);
  const PanelRows rows(p, panel);
  for (int64_t input = 0; input < p.num_inputs; input += kSlimGroupInputs, ++group) {
    uint32_t pairs[2][kPanel];
    uint16_t weights[kSlimLines][kSlimLine];
    gather_group(rows, input, p.num_inputs, pairs);
    static_assert(sizeof weights == sizeof pairs);
    memcpy(weights, pairs, sizeof weights);
    if (encode_group(weights, largest, *group)) continue;
    for (int64_t i = 0; i < kSlimGroupSize; ++i) {
      const uint16_t bits = weights[i / kSlimLine][i % kSlimLine];
      const int exponent = exponent_of(bits);
      if (exponent == 0 || (exponent <= largest && exponent > largest - kZeroCode)) continue;
      *exception++ = {static_cast<uint32_t>(input * kPanel + i), bits};
    }
  }
  *exception = {kNoPlace, 0};
}

}  // namespace

void plan_slim(const PackLinear& p, SlimPlan* plans, int64_t begin_panel, int64_t end_panel) {
  for (int64_t panel = begin_panel; panel < end_panel; ++panel) {
    int64_t counts[kNumExponents];
    count_exponents(PanelRows(p, panel), p.num_inputs, counts);
    plans[panel] = plan_panel(counts);
  }
}

void pack_slim(const PackLinear& p, const SlimPlan* plans, int64_t begin_panel,
               int64_t end_panel) {
  for (int64_t panel = begin_panel; panel < end_panel; ++panel) pack_panel(p, plans[panel], panel);
}

}  // namespace vllm_lite::VLLM_LITE_ISA
