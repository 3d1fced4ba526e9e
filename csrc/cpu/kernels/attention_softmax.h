// Attention's softmax: scores of a block of keys become weights, relative to the largest score
// of a row so far. For attention.cpp only.
//
// Scores are scaled by log2(e), so that weights are powers of two. A row's result depends on
// no other row: rows are only interleaved step by step, to overlap latencies.
#pragma once

#include "cpu/kernels/attention_operands.h"

namespace vllm_lite::VLLM_LITE_ISA {
namespace {

inline Vec cap_scores(Vec scores, float cap) {
  // tanh(y) = 1 - 2 / (e^2y + 1)
  const Vec doubled = exponential(scores * (2.0f / cap));
  return cap * (1.0f - 2.0f / (doubled + 1.0f));
}

// Rows processed together. Arrays have an entry for each.
struct SoftmaxRows {
  int64_t count;
  float* scores;  // [count, kKeys], which become weights
  float* maxima;
  Vec* sums;       // of weights
  float* rescales;  // output: factors for sums over earlier blocks
};

// The keys [begin, end) of a block are visible to a row.
struct VisibleKeys {
  int64_t begin;
  int64_t end;
};

// The bias of a block's scores, by the distance of keys from a row's query: ALiBi's, which is the
// same on either side, or numbers of each distance.
struct DistanceBias {
  float slope;  // times log2(e)
  float first;  // the first key's position less the query's
  const float* terms;  // null, or those of the first key and those behind
  int64_t num_terms;

  Vec terms_from(int64_t key) const {
    const int64_t left = num_terms - key;
    return left >= kLanes ? load(terms + key) : left > 0 ? load_partial(terms + key, left) : Vec{};
  }
};

constexpr int kKeyVectors = kKeys / kLanes;
// Vectors of scores side by side.
constexpr int kScoreVectors = kLanes == 16 ? 4 : 2;
static_assert(kMostGroupRows % kLanes == 0);

// The scale applied when scores become weights; with biases or a soft cap it is applied before.
inline bool is_scaled_late(const Attention& p, const RowScales* scales) {
  return p.scale > 0 && p.soft_cap == 0 && scales == nullptr && p.alibi_slopes == nullptr &&
         p.distance_terms == nullptr;
}

// Applies scale, soft cap and bias to a row's scores, except a late scale, and masks hidden keys;
// returns the largest.
template <bool kIsMasked, bool kIsBiased>
inline float finish_scores(const Attention& p, const RowScales* scales, const DistanceBias& bias,
                           const VisibleKeys& visible, float* scores) {
  const Vec nothing = broadcast(-INFINITY);
  const bool is_late = is_scaled_late(p, scales);
  const Vec scale = broadcast(p.soft_cap > 0 ? p.scale : p.scale * kLog2E);
  IntVec lane;
  for (int i = 0; i < kLanes; ++i) lane[i] = i;
  Vec highest = nothing;
  for (int first = 0; first < kKeyVectors; first += kScoreVectors) {
    Vec x[kScoreVectors];
    for (int i = 0; i < kScoreVectors; ++i) x[i] = load(scores + (first + i) * kLanes);
    if (!is_late) {
      for (int i = 0; i < kScoreVectors; ++i) x[i] *= scale;
    }
    if (scales != nullptr) {
      for (int i = 0; i < kScoreVectors; ++i) x[i] *= load(scales->keys + (first + i) * kLanes);
    }
    if (p.soft_cap > 0) {
      for (int i = 0; i < kScoreVectors; ++i) x[i] = cap_scores(x[i], p.soft_cap) * kLog2E;
    }
    if constexpr (kIsBiased) {
      for (int i = 0; i < kScoreVectors; ++i) {
        if (bias.terms != nullptr) {
          x[i] = multiply_add(bias.terms_from((first + i) * kLanes), broadcast(kLog2E), x[i]);
          continue;
        }
        const Vec key = __builtin_convertvector(lane + (first + i) * kLanes, Vec);
        const BitsVec apart = bit_cast<BitsVec>(key + bias.first) | 0x80000000u;
        x[i] = multiply_add(bit_cast<Vec>(apart), broadcast(bias.slope), x[i]);
      }
    }
    for (int i = 0; i < kScoreVectors; ++i) {
      if constexpr (kIsMasked) {
        const IntVec key = lane + (first + i) * kLanes;
        const IntVec is_visible = (key >= static_cast<int32_t>(visible.begin)) &
                                  (key < static_cast<int32_t>(visible.end));
        x[i] = is_visible ? x[i] : nothing;
      }
      if (kIsMasked || !is_late) store(scores + (first + i) * kLanes, x[i]);
      highest = max_lanes(x[i], highest);
    }
  }
  return is_late ? reduce_max(highest) * (p.scale * kLog2E) : reduce_max(highest);
}

// Not inlined, so that rows without biases cost what they would if there were none.
[[gnu::noinline]] inline float finish_biased_scores(const Attention& p, const RowScales* scales,
                                                    const DistanceBias& bias,
                                                    const VisibleKeys* visible, float* scores) {
  return visible == nullptr ? finish_scores<false, true>(p, scales, bias, {}, scores)
                            : finish_scores<true, true>(p, scales, bias, *visible, scores);
}

// Turns scores into weights relative to `base`; returns the sum plus theirs.
template <class Dot>
inline Vec weigh(const RowScales* scales, float late_scale, float base, float* row, Vec sum) {
  for (int v = 0; v < kKeyVectors; v += kScoreVectors) {
    Vec weights[kScoreVectors];
    for (int i = 0; i < kScoreVectors; ++i) {
      weights[i] = multiply_add(load(row + (v + i) * kLanes), broadcast(late_scale),
                                broadcast(-base));
    }
    raise_two(weights, Dot::kPowers);
    if (scales == nullptr) {
      sum = Dot::store_weights(row, v * kLanes, weights, sum);
      continue;
    }
    for (int i = 0; i < kScoreVectors; ++i) {
      sum += weights[i];
      weights[i] *= load(scales->values + (v + i) * kLanes);
    }
    Dot::store_weights(row, v * kLanes, weights, Vec{});
  }
  return sum;
}

// `visible` may be null: then all rows see all keys. So may `biases`, which has an entry a row.
template <class Dot>
inline void update_softmax(const Attention& p, const RowScales* scales, const DistanceBias* biases,
                           const VisibleKeys* visible, RowsAhead& ahead, const SoftmaxRows& rows) {
  alignas(64) float changes[kMostGroupRows] = {};
  float bases[kMostGroupRows];
  for (int64_t r = 0; r < rows.count; ++r) {
    float* scores = rows.scores + r * kKeys;
    const VisibleKeys* seen = visible == nullptr ? nullptr : visible + r;
    if (biases != nullptr) {
      bases[r] = finish_biased_scores(p, scales, biases[r], seen, scores);
    } else {
      bases[r] = seen == nullptr ? finish_scores<false, false>(p, scales, {}, {}, scores)
                                 : finish_scores<true, false>(p, scales, {}, *seen, scores);
    }
    ahead.ask(3);
  }
  for (int64_t r = 0; r < rows.count; ++r) {
    const float max = max_of(rows.maxima[r], bases[r]);
    bases[r] = max == -INFINITY ? 0.0f : max;  // a row that sees nothing yet
    changes[r] = rows.maxima[r] - bases[r];
    rows.maxima[r] = max;
  }
  for (int64_t r = 0; r < rows.count; r += kLanes) {
    store(rows.rescales + r, power_of_two(load(changes + r)));
  }
  const float late_scale = is_scaled_late(p, scales) ? p.scale * kLog2E : 1.0f;
  for (int64_t r = 0; r < rows.count; ++r) {
    rows.sums[r] = weigh<Dot>(scales, late_scale, bases[r], rows.scores + r * kKeys,
                              rows.sums[r] * rows.rescales[r]);
    ahead.ask(5);
  }
}

}  // namespace
}  // namespace vllm_lite::VLLM_LITE_ISA
