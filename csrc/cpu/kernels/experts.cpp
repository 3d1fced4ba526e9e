// A mixture of experts: routing, and the weighted sum of experts' outputs.
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

template <class T>
void sum_rows(const ExpertSum& p, int64_t begin, int64_t end) {
  for (int64_t token = begin; token < end; ++token) {
    const int32_t* places = p.places + token * p.top_k;
    const float* weights = p.weights + token * p.top_k;
    T* out = static_cast<T*>(p.out) + token * p.size;
    for_each_vector(p.size, [&](int64_t i, int64_t count) {
      Vec sum = {};
      for (int64_t k = 0; k < p.top_k; ++k) {
        if (places[k] < 0) continue;
        const Vec row = load_upto(p.rows + places[k] * p.size + i, count);
        sum = multiply_add(row, broadcast(weights[k]), sum);
      }
      store_upto(out + i, sum, count);
    });
  }
}

}  // namespace

void route(const Route& p, int64_t begin, int64_t end) {
  float shares[kMaxExperts];
  for (int64_t row = begin; row < end; ++row) {
    find_shares(p.logits + row * p.logits_stride, p.num_experts, shares);
    float* weights = p.weights + row * p.top_k;
    int32_t* ids = p.ids + row * p.top_k;
    float total = 0.0f;
    for (int64_t k = 0; k < p.top_k; ++k) {
      // If one probability is NaN, all are, and experts come in order.
      int64_t best = k;
      float largest = -1.0f;
      for (int64_t i = 0; i < p.num_experts; ++i) {
        if (shares[i] > largest) largest = shares[best = i];
      }
      ids[k] = static_cast<int32_t>(best);
      weights[k] = shares[best];
      total += shares[best];
      shares[best] = -1.0f;
    }
    if (!p.is_renormalized) continue;
    for (int64_t k = 0; k < p.top_k; ++k) weights[k] /= total;
  }
}

void sum_experts(const ExpertSum& p, int64_t begin, int64_t end) {
  if (p.dtype == DType::kBFloat16) {
    sum_rows<BFloat16>(p, begin, end);
  } else {
    sum_rows<float>(p, begin, end);
  }
}

}  // namespace vllm_lite::VLLM_LITE_ISA
