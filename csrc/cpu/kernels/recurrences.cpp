// Recurrences with a state for each channel, and the gated delta rule.
#include "cpu/kernels/activations.h"
#include "cpu/kernels/kernels.h"

namespace vllm_lite::VLLM_LITE_ISA {
namespace {

// Copies `size` elements as floats.
template <class T>
void widen_row(float* to, const T* from, int64_t size) {
  for_each_vector(size, [&](int64_t i, int64_t count) {
    store_upto(to + i, load_upto(from + i, count), count);
  });
}

template <class T>
void scan_channels(const ChannelScan& p, const StateRun& run, int64_t first, float* scratch) {
  const int64_t size = min_of(kConvChannels, p.num_channels - first);
  float *state = scratch, *b = scratch + p.state_size * kConvChannels, *c = b + p.state_size;
  const float* from = run.state_in < 0 ? nullptr : p.states + run.state_in * p.slot_stride + first;
  int64_t from_stride = p.num_channels;
  for (int64_t token = run.first_token; token < run.first_token + run.num_tokens; ++token) {
    widen_row(b, static_cast<const T*>(p.b) + token * p.b_stride, p.state_size);
    widen_row(c, static_cast<const T*>(p.c) + token * p.c_stride, p.state_size);
    const int64_t slot = p.state_out[token];
    float* to = slot < 0 ? state : p.states + slot * p.slot_stride + first;
    const int64_t to_stride = slot < 0 ? kConvChannels : p.num_channels;
    const T* x = static_cast<const T*>(p.x) + token * p.x_stride + first;
    const T* dt = static_cast<const T*>(p.dt) + token * p.dt_stride + first;
    const T* gate = static_cast<const T*>(p.gate) + token * p.gate_stride + first;
    T* out = static_cast<T*>(p.out) + token * p.num_channels + first;
    for_each_vector(size, [&](int64_t i, int64_t count) {
      const Vec step = softplus(load_upto(dt + i, count));
      const Vec given = load_upto(x + i, count), input = given * step;
      Vec y = {};
      for (int64_t n = 0; n < p.state_size; ++n) {
        const Vec a = load_upto(p.a + n * p.num_channels + first + i, count);
        const Vec before = from == nullptr ? Vec{} : load_upto(from + n * from_stride + i, count);
        const Vec kept = before * exponential(step * a);
        const Vec after = multiply_add(input, broadcast(b[n]), kept);
        store_upto(to + n * to_stride + i, after, count);
        y = multiply_add(after, broadcast(c[n]), y);
      }
      y = multiply_add(given, load_upto(p.d + first + i, count), y);
      store_upto(out + i, y * silu(load_upto(gate + i, count)), count);
    });
    from = to;
    from_stride = to_stride;
  }
}

Vec square_root(Vec x) {
  for (int i = 0; i < kLanes; ++i) x[i] = sqrtf(x[i]);
  return x;
}

template <class T>
void follow_recurrence(const GatedRecurrence& p, const StateRun& run, int64_t first,
                       float* scratch) {
  const int64_t size = min_of(kConvChannels, p.num_channels - first);
  const float* from = run.state_in < 0 ? nullptr : p.states + run.state_in * p.slot_stride + first;
  for (int64_t token = run.first_token; token < run.first_token + run.num_tokens; ++token) {
    const int64_t slot = p.state_out[token];
    float* to = slot < 0 ? scratch : p.states + slot * p.slot_stride + first;
    const T* x = static_cast<const T*>(p.x) + token * p.x_stride + first;
    const T* gate = static_cast<const T*>(p.gate) + token * p.gate_stride + first;
    const T* decay = static_cast<const T*>(p.decay) + token * p.decay_stride + first;
    T* out = static_cast<T*>(p.out) + token * p.num_channels + first;
    for_each_vector(size, [&](int64_t i, int64_t count) {
      const auto gate_of = [&](const T* row, const float* bias) {
        return sigmoid(load_upto(row + i, count) + load_upto(bias + first + i, count));
      };
      Vec state = gate_of(gate, p.gate_bias) * load_upto(x + i, count);
      if (from != nullptr) {
        const Vec exponent =
            load_upto(p.rate + first + i, count) * gate_of(decay, p.decay_bias);
        const Vec kept = exponential(exponent);
        // 1 - e^2y is tanh(-y) (1 + e^2y), where the difference would lose digits.
        const Vec taken = square_root(tanh(-exponent) * multiply_add(kept, kept, broadcast(1.0f)));
        state = multiply_add(load_upto(from + i, count), kept, state * taken);
      }
      store_upto(to + i, state, count);
      store_upto(out + i, state, count);
    });
    from = to;
  }
}

// The row scaled to length 1 and by `scale`.
template <class T>
void unit_row(float* to, const T* from, int64_t size, float scale) {
  Vec sum = {};
  for_each_vector(size, [&](int64_t i, int64_t count) {
    const Vec v = load_upto(from + i, count);
    sum = multiply_add(v, v, sum);
  });
  const Vec factor = broadcast(scale / sqrtf(reduce_add(sum) + 1e-6f));
  for_each_vector(size, [&](int64_t i, int64_t count) {
    store_upto(to + i, load_upto(from + i, count) * factor, count);
  });
}

// One token's operands for the states of one head.
struct DeltaToken {
  const float* q;  // [K]
  const float* k;
  const float* kept;  // [K]: what is left of each row
  float share;
  const float* from;  // the state before, [K, V]; null: zeros
  float* to;
};

// Vectors of a state's row held in registers together.
constexpr int kDeltaVectors = 4;

// `kVectors` vectors of values from column p on, the last of `count` columns.
template <int kVectors, class T>
void delta_columns(const DeltaToken& at, int64_t key_size, int64_t value_size, int64_t p,
                   int64_t count, const T* v, T* out) {
  const auto lanes = [&](int i) { return i + 1 < kVectors ? int64_t{kLanes} : count; };
  Vec known[kVectors] = {}, y[kVectors] = {}, moved[kVectors];
  if (at.from != nullptr) {
    for (int64_t n = 0; n < key_size; ++n) {
      const Vec factor = broadcast(at.kept[n] * at.k[n]);
#pragma GCC unroll 4
      for (int i = 0; i < kVectors; ++i) {
        const float* row = at.from + n * value_size + p + i * kLanes;
        known[i] = multiply_add(load_upto(row, lanes(i)), factor, known[i]);
      }
    }
  }
  for (int i = 0; i < kVectors; ++i) {
    moved[i] = (load_upto(v + p + i * kLanes, lanes(i)) - known[i]) * at.share;
  }
  for (int64_t n = 0; n < key_size; ++n) {
    const Vec k = broadcast(at.k[n]), q = broadcast(at.q[n]), kept = broadcast(at.kept[n]);
    const int64_t row = n * value_size + p;
#pragma GCC unroll 4
    for (int i = 0; i < kVectors; ++i) {
      const Vec before =
          at.from == nullptr ? Vec{} : load_upto(at.from + row + i * kLanes, lanes(i));
      const Vec after = multiply_add(moved[i], k, before * kept);
      store_upto(at.to + row + i * kLanes, after, lanes(i));
      y[i] = multiply_add(after, q, y[i]);
    }
  }
  for (int i = 0; i < kVectors; ++i) store_upto(out + p + i * kLanes, y[i], lanes(i));
}

template <class T>
void follow_delta_rule(const DeltaRule& p, const StateRun& run, int64_t head, float* scratch) {
  const int64_t size = p.key_size * p.value_size;
  float *state = scratch, *q = scratch + size, *k = q + p.key_size, *kept = k + p.key_size;
  const float* from =
      run.state_in < 0 ? nullptr : p.states + run.state_in * p.slot_stride + head * size;
  const int64_t key = head / (p.num_heads / p.num_key_heads) * p.key_size;
  const float query_scale = 1.0f / sqrtf(static_cast<float>(p.key_size));
  const Vec a = broadcast(p.a[head]);
  const float* bias = p.dt_bias + head * p.decays_of_head;
  for (int64_t token = run.first_token; token < run.first_token + run.num_tokens; ++token) {
    unit_row(q, static_cast<const T*>(p.q) + token * p.q_stride + key, p.key_size, query_scale);
    unit_row(k, static_cast<const T*>(p.k) + token * p.k_stride + key, p.key_size, 1.0f);
    const T* decay =
        static_cast<const T*>(p.decay) + token * p.decay_stride + head * p.decays_of_head;
    if (p.decays_of_head == 1) {
      const float one = exponential(a * softplus(broadcast(to_float(*decay) + *bias)))[0];
      for (int64_t n = 0; n < p.key_size; ++n) kept[n] = one;
    } else {
      for_each_vector(p.key_size, [&](int64_t i, int64_t count) {
        const Vec given = load_upto(decay + i, count) + load_upto(bias + i, count);
        store_upto(kept + i, exponential(a * softplus(given)), count);
      });
    }
    const float beta = to_float(static_cast<const T*>(p.beta)[token * p.beta_stride + head]);
    const int64_t slot = p.state_out[token];
    float* to = slot < 0 ? state : p.states + slot * p.slot_stride + head * size;
    const DeltaToken at = {q, k, kept, p.beta_scale * sigmoid(broadcast(beta))[0], from, to};
    const T* v = static_cast<const T*>(p.v) + token * p.v_stride + head * p.value_size;
    T* out = static_cast<T*>(p.out) + (token * p.num_heads + head) * p.value_size;
    constexpr int64_t kColumns = kDeltaVectors * kLanes;
    int64_t column = 0;
    for (; column + kColumns <= p.value_size; column += kColumns) {
      delta_columns<kDeltaVectors>(at, p.key_size, p.value_size, column, kLanes, v, out);
    }
    for (; column < p.value_size; column += kLanes) {
      const int64_t count = min_of<int64_t>(kLanes, p.value_size - column);
      delta_columns<1>(at, p.key_size, p.value_size, column, count, v, out);
    }
    from = to;
  }
}

}  // namespace

void channel_scan(const ChannelScan& p, const StateRun& run, int64_t block, float* scratch) {
  with_type(p.dtype, [&](auto number) {
    scan_channels<decltype(number)>(p, run, block * kConvChannels, scratch);
  });
}

void gated_recurrence(const GatedRecurrence& p, const StateRun& run, int64_t block,
                      float* scratch) {
  with_type(p.dtype, [&](auto number) {
    follow_recurrence<decltype(number)>(p, run, block * kConvChannels, scratch);
  });
}

void delta_rule(const DeltaRule& p, const StateRun& run, int64_t head, float* scratch) {
  with_type(p.dtype, [&](auto number) {
    follow_delta_rule<decltype(number)>(p, run, head, scratch);
  });
}

}  // namespace vllm_lite::VLLM_LITE_ISA
