// Elementwise operations and rotary embeddings.
#include "cpu/kernels/activations.h"
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

template <class T, class Function>
void activate_rows(const Activation& p, int64_t begin, int64_t end, Function&& function) {
  const bool is_bounded = p.is_gated && (p.limit != INFINITY || p.shift != 0.0f);
  const Vec most = broadcast(p.limit), shift = broadcast(p.shift);
  for (int64_t row = begin; row < end; ++row) {
    const T* x = static_cast<const T*>(p.x) + row * p.x_stride;
    T* out = static_cast<T*>(p.out) + row * p.out_stride;
    for_each_vector(p.size, [&](int64_t i, int64_t count) {
      Vec gate = load_upto(x + i, count);
      if (is_bounded) gate = gate > most ? most : gate;
      Vec result = function(gate);
      // Rounded as if it had been stored in between.
      if (p.is_gated) {
        Vec factor = load_upto(x + p.size + i, count);
        if (is_bounded) {
          factor = factor > most ? most : factor < -most ? -most : factor;
          factor = rounded_to(out, factor + shift);
        }
        result = rounded_to(out, result) * factor;
      }
      store_upto(out + i, result, count);
    });
  }
}

template <class T>
void scaled_add_rows(const ScaledAdd& p, int64_t begin, int64_t end) {
  const Vec x_scale = broadcast(p.x_scale);
  const Vec most = broadcast(p.limit), least = -most;
  for (int64_t row = begin; row < end; ++row) {
    const float gate =
        p.gates == nullptr ? 1.0f : 1.0f / (1.0f + exponential(-p.gates[row * p.gates_stride]));
    const Vec y_scale = broadcast(p.y_scale * gate);
    const T* x = static_cast<const T*>(p.x) + row * p.x_stride;
    const T* y = static_cast<const T*>(p.y) + row * p.y_stride;
    T* out = static_cast<T*>(p.out) + row * p.out_stride;
    for_each_vector(p.size, [&](int64_t i, int64_t count) {
      Vec sum = load_upto(x + i, count) * x_scale;
      if (p.y != nullptr) sum = multiply_add(load_upto(y + i, count), y_scale, sum);
      sum = sum > most ? most : sum < least ? least : sum;  // a NaN stays one
      store_upto(out + i, sum, count);
    });
  }
}

template <class T>
void mix_token(const RowMix& p, int64_t token) {
  const T* x = static_cast<const T*>(p.x) + token * p.x_stride;
  const T* factors = static_cast<const T*>(p.factors) + token * p.factors_stride;
  const T* base = static_cast<const T*>(p.base) + token * p.base_stride;
  const T* weight = static_cast<const T*>(p.weight);
  T* out = static_cast<T*>(p.out) + token * p.out_stride;
  for (int64_t to = 0; to < p.num_outputs; ++to) {
    for_each_vector(p.size, [&](int64_t i, int64_t count) {
      Vec sum = {};
      if (p.base != nullptr) sum = load_upto(base + to * p.base_row_stride + i, count);
      for (int64_t from = 0; from < p.num_inputs; ++from) {
        float factor = p.offset;
        if (p.factors != nullptr) factor += to_float(factors[to * p.num_inputs + from]);
        sum = multiply_add(load_upto(x + from * p.x_row_stride + i, count), broadcast(factor), sum);
      }
      if (weight != nullptr) sum = sum * load_upto(weight + i, count);
      store_upto(out + to * p.out_row_stride + i, sum, count);
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
  with_type(p.dtype, [&](auto number) { rotary_rows<decltype(number)>(p, begin, end); });
}

void activate(const Activation& p, int64_t begin, int64_t end) {
  const auto run = [&](auto function) {
    with_type(p.dtype, [&](auto number) {
      activate_rows<decltype(number)>(p, begin, end, function);
    });
  };
  if (p.kind == ActivationKind::kGelu && p.dtype == DType::kBFloat16) {
    activate_rows<BFloat16>(p, begin, end, [](Vec x) { return rough_gelu(x); });
  } else if (p.kind == ActivationKind::kXielu) {
    run([&](Vec x) { return xielu(x, p.curve); });
  } else {
    with_activation(p.kind, run);
  }
}

void scaled_add(const ScaledAdd& p, int64_t begin, int64_t end) {
  with_type(p.dtype, [&](auto number) { scaled_add_rows<decltype(number)>(p, begin, end); });
}

void mix_rows(const RowMix& p, int64_t begin, int64_t end) {
  with_type(p.dtype, [&](auto number) {
    for (int64_t token = begin; token < end; ++token) mix_token<decltype(number)>(p, token);
  });
}

void apply_token_mask(const TokenMask& p, int64_t begin_part, int64_t end_part) {
  const int64_t num_words = (p.vocab_size + kMaskWord - 1) / kMaskWord;
  const int64_t num_parts = (num_words + kWordsPerPart - 1) / kWordsPerPart;
  for (int64_t part = begin_part; part < end_part; ++part) {
    const int64_t mask = part / num_parts;
    float* logits = p.logits + p.rows[mask] * p.logits_stride;
    const uint32_t* bits = p.bits + mask * p.bits_stride;
    const int64_t first = part % num_parts * kWordsPerPart;
    const int64_t last = first + kWordsPerPart < num_words ? first + kWordsPerPart : num_words;
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
