// A mixture of experts: routing, and the weighted sum of experts' outputs.
#include <float.h>

#include "cpu/kernels/kernels.h"

namespace vllm_lite::VLLM_LITE_ISA {
namespace {

// The softmax of `size` logits.
void find_shares(const float* logits, int64_t size, float* shares) {
  float largest = -INFINITY;
  for (int64_t i = 0; i < size; ++i) largest = max_of(largest, logits[i]);
  for_each_vector(size, [&](int64_t i, int64_t count) {
    store_upto(shares + i, exponential(load_upto(logits + i, count) - largest), count);
  });
  float sum = 0.0f;
  for (int64_t i = 0; i < size; ++i) sum += shares[i];
  for (int64_t i = 0; i < size; ++i) shares[i] /= sum;
}

void find_scores(const Route& p, const float* logits, float* scores) {
  switch (p.scores) {
    case ExpertScores::kSoftmax: return find_shares(logits, p.num_experts, scores);
    case ExpertScores::kSigmoid:
      return for_each_vector(p.num_experts, [&](int64_t i, int64_t count) {
        store_upto(scores + i, 1.0f / (1.0f + exponential(-load_upto(logits + i, count))), count);
      });
    case ExpertScores::kSparsemixer:
      for (int64_t i = 0; i < p.num_experts; ++i) scores[i] = logits[i];
  }
}

// The first place of the largest value; some value is above -infinity.
int64_t place_of_largest(const float* values, int64_t size) {
  int64_t best = 0;
  float largest = -INFINITY;
  for (int64_t i = 0; i < size; ++i) {
    if (values[i] > largest) largest = values[best = i];
  }
  return best;
}

// Lets experts of all but the best groups be chosen last.
void exclude_groups(const Route& p, float* order) {
  const int64_t size = p.num_experts / p.num_groups;
  float totals[kMaxExperts];
  for (int64_t group = 0; group < p.num_groups; ++group) {
    float first = -INFINITY, second = -INFINITY;
    for (int64_t i = group * size; i < (group + 1) * size; ++i) {
      second = order[i] > first ? first : max_of(second, order[i]);
      first = max_of(first, order[i]);
    }
    totals[group] = max_of(-FLT_MAX, p.best_of_group == 1 ? first : first + second);
  }
  for (int64_t k = 0; k < p.top_groups; ++k) {
    totals[place_of_largest(totals, p.num_groups)] = -INFINITY;
  }
  for (int64_t group = 0; group < p.num_groups; ++group) {
    if (totals[group] == -INFINITY) continue;
    for (int64_t i = group * size; i < (group + 1) * size; ++i) order[i] = -FLT_MAX;
  }
}

// The softmax share of the largest logit among those left that are near it (arXiv:2310.00811).
float share_of_near(const Route& p, const float* left, int64_t best) {
  const float largest = left[best];
  float sum = 0.0f;
  for (int64_t i = 0; i < p.num_experts; ++i) {
    const float size = max_of(left[i] < 0.0f ? -left[i] : left[i], largest);
    if (left[i] == -INFINITY || (largest - left[i]) / size > p.tolerance) continue;
    sum += exponential(left[i] - largest);
  }
  return 1.0f / sum;
}

template <class T>
void sum_rows(const ExpertSum& p, int64_t begin, int64_t end) {
  for (int64_t token = begin; token < end; ++token) {
    const int32_t* places = p.places + token * p.top_k;
    const float* weights = p.weights == nullptr ? nullptr : p.weights + token * p.top_k;
    T* out = static_cast<T*>(p.out) + token * p.size;
    for_each_vector(p.size, [&](int64_t i, int64_t count) {
      Vec sum = {};
      for (int64_t k = 0; k < p.top_k; ++k) {
        if (places[k] < 0) continue;
        const Vec row = load_upto(p.rows + places[k] * p.size + i, count);
        sum = weights == nullptr ? sum + row : multiply_add(row, broadcast(weights[k]), sum);
      }
      store_upto(out + i, sum, count);
    });
  }
}

}  // namespace

void route(const Route& p, int64_t begin, int64_t end) {
  float scores[kMaxExperts], order[kMaxExperts];
  for (int64_t row = begin; row < end; ++row) {
    find_scores(p, p.logits + row * p.logits_stride, scores);
    // Numbers that a choice can compare: NaN and what is excluded comes last, and still once.
    for (int64_t i = 0; i < p.num_experts; ++i) {
      const float score = p.bias == nullptr ? scores[i] : scores[i] + p.bias[i];
      order[i] = score >= -FLT_MAX ? score : -FLT_MAX;
    }
    if (p.top_groups < p.num_groups) exclude_groups(p, order);
    float* weights = p.weights + row * p.top_k;
    int32_t* ids = p.ids + row * p.top_k;
    float total = p.epsilon;
    for (int64_t k = 0; k < p.top_k; ++k) {
      const int64_t best = place_of_largest(order, p.num_experts);
      ids[k] = static_cast<int32_t>(best);
      weights[k] = p.scores == ExpertScores::kSparsemixer ? share_of_near(p, order, best)
                                                          : scores[best];
      total += weights[k];
      order[best] = -INFINITY;
    }
    const float divisor = p.is_renormalized ? total : 1.0f;
    for (int64_t k = 0; k < p.top_k; ++k) {
      weights[k] = weights[k] / divisor * p.scale;
      if (p.factors != nullptr) weights[k] *= p.factors[ids[k]];
    }
  }
}

void sum_experts(const ExpertSum& p, int64_t begin, int64_t end) {
  with_type(p.dtype, [&](auto number) { sum_rows<decltype(number)>(p, begin, end); });
}

}  // namespace vllm_lite::VLLM_LITE_ISA
