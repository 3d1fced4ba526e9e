// Embeddings of encoders, and sums of the rows of requests.
#include "cpu/kernels/kernels.h"
#include "cpu/kernels/row_means.h"

namespace vllm_lite::VLLM_LITE_ISA {
namespace {

template <class T, class W>
void embed_token(const EncoderEmbedding& p, int64_t token) {
  const T* word = static_cast<const T*>(p.words) + p.ids[token] % p.num_words * p.size;
  const T* type = static_cast<const T*>(p.types);
  if (type != nullptr) type += p.ids[token] / p.num_words * p.size;
  const T* place = static_cast<const T*>(p.places);
  if (place != nullptr) place += p.positions[token] * p.size;
  T* out = static_cast<T*>(p.out) + token * p.size;
  // Summed wherever it is needed: rows stay in the cache, and float32 has no other place.
  const auto total = [&](int64_t i, int64_t count) {
    Vec sum = load_upto(word + i, count);
    if (type != nullptr) sum += load_upto(type + i, count);
    if (place != nullptr) sum += load_upto(place + i, count);
    return sum;
  };
  if (p.norm_weight == nullptr) {
    for_each_vector(p.size, [&](int64_t i, int64_t count) {
      store_upto(out + i, total(i, count), count);
    });
    return;
  }
  const Vec mean = broadcast(mean_of(p.size, total, AddPlain()));
  const Vec scale = broadcast(1.0f / sqrtf(mean_of(p.size, total, AddSquareFrom{mean}) + p.eps));
  const W* weight = static_cast<const W*>(p.norm_weight);
  const W* bias = static_cast<const W*>(p.norm_bias);
  for_each_vector(p.size, [&](int64_t i, int64_t count) {
    const Vec normed = (total(i, count) - mean) * scale;
    const Vec shift = bias == nullptr ? Vec{} : load_upto(bias + i, count);
    store_upto(out + i, multiply_add(normed, load_upto(weight + i, count), shift), count);
  });
}

// Adds a segment to kVectors vectors of its sum, from column `at` on.
template <int kVectors, class T>
void add_segment(const SegmentSum& p, int64_t segment, int64_t at) {
  float* sums = p.sums + segment * p.sums_stride + at;
  Vec total[kVectors];
  for (int v = 0; v < kVectors; ++v) total[v] = load(sums + v * kLanes);
  for (int64_t row = p.starts[segment]; row < p.starts[segment + 1]; ++row) {
    const T* x = static_cast<const T*>(p.x) + row * p.x_stride + at;
    for (int v = 0; v < kVectors; ++v) total[v] += load(x + v * kLanes);
  }
  for (int v = 0; v < kVectors; ++v) store(sums + v * kLanes, total[v]);
}

template <class T>
void sum_segment(const SegmentSum& p, int64_t segment) {
  int64_t at = 0;
  for (; at + 8 * kLanes <= p.size; at += 8 * kLanes) add_segment<8, T>(p, segment, at);
  for (; at + kLanes <= p.size; at += kLanes) add_segment<1, T>(p, segment, at);
  for (; at < p.size; ++at) {
    float& sum = p.sums[segment * p.sums_stride + at];
    for (int64_t row = p.starts[segment]; row < p.starts[segment + 1]; ++row) {
      sum += to_float(static_cast<const T*>(p.x)[row * p.x_stride + at]);
    }
  }
}

}  // namespace

void encoder_embedding(const EncoderEmbedding& p, int64_t begin, int64_t end) {
  const auto embed = p.dtype == DType::kFloat32        ? embed_token<float, float>
                     : p.norm_dtype == DType::kFloat32 ? embed_token<BFloat16, float>
                                                       : embed_token<BFloat16, BFloat16>;
  for (int64_t token = begin; token < end; ++token) embed(p, token);
}

void segment_sum(const SegmentSum& p, int64_t begin, int64_t end) {
  with_type(p.dtype, [&](auto number) {
    for (int64_t r = begin; r < end; ++r) sum_segment<decltype(number)>(p, r);
  });
}

}  // namespace vllm_lite::VLLM_LITE_ISA
