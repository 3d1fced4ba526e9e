#include "cpu/kernels/kernels.h"

namespace vllm_lite::VLLM_LITE_ISA {
namespace {

template <class T>
void rotate_halves(T* head, const float* cos, const float* sin, int64_t half) {
  for_each_vector(half, [&](int64_t i, int64_t count) {
    const Vec first = load_upto(head + i, count), second = load_upto(head + half + i, count);
    const Vec c = load_upto(cos + i, count), s = load_upto(sin + i, count);
    store_upto(head + i, first * c - second * s, count);
    store_upto(head + half + i, second * c + first * s, count);
  });
}

template <class T>
void rotate_pairs(T* head, const float* cos, const float* sin, int64_t half) {
  for (int64_t i = 0; i < half; ++i) {
    const float first = to_float(head[2 * i]), second = to_float(head[2 * i + 1]);
    from_float(head + 2 * i, first * cos[i] - second * sin[i]);
    from_float(head + 2 * i + 1, second * cos[i] + first * sin[i]);
  }
}

template <class T>
void rotary_rows(const Rotary& p, int64_t begin, int64_t end) {
  const int64_t half = p.rot_dim / 2;
  for (int64_t token = begin; token < end; ++token) {
    const float* cos = p.cos_sin_cache + p.positions[token] * p.rot_dim;
    for (int tensor = 0; tensor < 2; ++tensor) {
      T* head = static_cast<T*>(p.heads[tensor]) + token * p.token_strides[tensor];
      for (int64_t h = 0; h < p.num_heads[tensor]; ++h, head += p.head_strides[tensor]) {
        if (p.is_neox) {
          rotate_halves(head, cos, cos + half, half);
        } else {
          rotate_pairs(head, cos, cos + half, half);
        }
      }
    }
  }
}

template <class T>
void silu_and_mul_rows(const SiluAndMul& p, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    const T* gate = static_cast<const T*>(p.x) + row * p.x_stride;
    const T* up = gate + p.size;
    T* out = static_cast<T*>(p.out) + row * p.out_stride;
    for_each_vector(p.size, [&](int64_t i, int64_t count) {
      const Vec product = silu_times(out, load_upto(gate + i, count), load_upto(up + i, count));
      store_upto(out + i, product, count);
    });
  }
}

// The bits decide with arithmetic, not with branches, so that the loop becomes vectors.
void mask_word(float* logits, uint32_t word, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    logits[i] = (word >> i) & 1 ? logits[i] : -INFINITY;
  }
}

}  // namespace

void rotary(const Rotary& p, int64_t begin, int64_t end) {
  if (p.dtype == DType::kBFloat16) {
    rotary_rows<BFloat16>(p, begin, end);
  } else {
    rotary_rows<float>(p, begin, end);
  }
}

void silu_and_mul(const SiluAndMul& p, int64_t begin, int64_t end) {
  if (p.dtype == DType::kBFloat16) {
    silu_and_mul_rows<BFloat16>(p, begin, end);
  } else {
    silu_and_mul_rows<float>(p, begin, end);
  }
}

void apply_token_mask(const TokenMask& p, int64_t begin_part, int64_t end_part) {
  const int64_t num_words = (p.vocab_size + kMaskWord - 1) / kMaskWord;
  const int64_t num_parts = (num_words + p.words_per_part - 1) / p.words_per_part;
  for (int64_t part = begin_part; part < end_part; ++part) {
    const int64_t mask = part / num_parts;
    float* logits = p.logits + p.rows[mask] * p.logits_stride;
    const uint32_t* bits = p.bits + mask * p.bits_stride;
    const int64_t first = part % num_parts * p.words_per_part;
    const int64_t last = first + p.words_per_part < num_words ? first + p.words_per_part : num_words;
    for (int64_t word = first; word < last; ++word) {
      const int64_t start = word * kMaskWord;
      const int64_t left = p.vocab_size - start;
      if (bits[word] == UINT32_MAX) continue;
      if (left >= kMaskWord) {
        mask_word(logits + start, bits[word], kMaskWord);
      } else {
        mask_word(logits + start, bits[word], left);
      }
    }
  }
}

}  // namespace vllm_lite::VLLM_LITE_ISA
