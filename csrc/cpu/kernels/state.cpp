// State-space layers: the convolution over a request's last inputs, and the scan.
#include "cpu/kernels/activations.h"
#include "cpu/kernels/kernels.h"

namespace vllm_lite::VLLM_LITE_ISA {
namespace {

template <class T, bool kHasFactors, class Function>
void convolve(const CausalConv& p, const StateRun& run, int64_t first, int64_t size,
              Function&& function) {
  const int64_t past = p.kernel_size - 1;
  // A copy: the slot may be written before all of it is read.
  float before[(kMaxConvKernel - 1) * kConvChannels] = {};
  if (run.state_in >= 0) {
    const float* state = p.states + run.state_in * p.slot_stride + first;
    for (int64_t k = 0; k < past; ++k) {
      memcpy(before + k * kConvChannels, state + k * p.num_channels, size * sizeof(float));
    }
  }
  const T* x = static_cast<const T*>(p.x) + run.first_token * p.x_stride + first;
  const T* factors = nullptr;
  if constexpr (kHasFactors) {
    factors = static_cast<const T*>(p.before) + run.first_token * p.before_stride + first;
  }
  // Inputs from `past` tokens before token t on.
  const auto input = [&](int64_t t, int64_t i, int64_t count) {
    if (t < past) return load_upto(before + t * kConvChannels + i, count);
    const Vec v = load_upto(x + (t - past) * p.x_stride + i, count);
    if constexpr (!kHasFactors) return v;
    return v * load_upto(factors + (t - past) * p.before_stride + i, count);
  };
  for (int64_t t = 0; t < run.num_tokens; ++t) {
    const int64_t token = run.first_token + t;
    T* out = static_cast<T*>(p.out) + token * p.num_channels + first;
    const T* after = nullptr;
    if constexpr (kHasFactors) {
      after = static_cast<const T*>(p.after) + token * p.after_stride + first;
    }
    const int64_t slot = p.state_out[token];
    float* state = slot < 0 ? nullptr : p.states + slot * p.slot_stride + first;
    for_each_vector(size, [&](int64_t i, int64_t count) {
      Vec sum = p.bias == nullptr ? Vec{} : load_upto(p.bias + first + i, count);
      for (int64_t k = 0; k < p.kernel_size; ++k) {
        const Vec v = input(t + k, i, count);
        sum = multiply_add(v, load_upto(p.weight + k * p.num_channels + first + i, count), sum);
        if (state != nullptr && k > 0) {
          store_upto(state + (k - 1) * p.num_channels + i, v, count);
        }
      }
      Vec result = function(sum);
      if constexpr (kHasFactors) result *= load_upto(after + i, count);
      store_upto(out + i, result, count);
    });
  }
}

template <class T>
void convolve(const CausalConv& p, const StateRun& run, int64_t first, int64_t size) {
  const auto unchanged = [](Vec x) { return x; };
  if (p.before != nullptr) {
    convolve<T, true>(p, run, first, size, unchanged);
  } else if (p.has_act) {
    with_activation(p.act, [&](auto act) { convolve<T, false>(p, run, first, size, act); });
  } else {
    convolve<T, false>(p, run, first, size, unchanged);
  }
}

inline float softplus(float x) { return x > 20.0f ? x : log1pf(expf(x)); }
// A NaN stays.
inline float held_within(const SelectiveScan& p, float step) {
  return min_of(p.most_step, max_of(p.least_step, step));
}

// One token's operands for a scan of one head's columns [P].
struct ScanToken {
  float decay;
  const float* b;  // [N]
  const float* c;
  const float* from;  // the state before, [N, P]; null: zeros
  float* to;
};

// Vectors of a state's row held in registers together.
constexpr int kScanVectors = 4;

// y += c state for `kVectors` vectors from column p on, the last of `count` columns.
template <int kVectors, class Inputs, class Finish>
void scan_columns(const ScanToken& token, int64_t state_size, int64_t head_size, int64_t p,
                  int64_t count, Inputs&& inputs, Finish&& finish) {
  Vec x[kVectors], y[kVectors] = {};
  const auto lanes = [&](int i) { return i + 1 < kVectors ? int64_t{kLanes} : count; };
  for (int i = 0; i < kVectors; ++i) x[i] = inputs(p + i * kLanes, lanes(i));
  const Vec decay = broadcast(token.decay);
  for (int64_t n = 0; n < state_size; ++n) {
    const Vec b = broadcast(token.b[n]), c = broadcast(token.c[n]);
    const int64_t row = n * head_size + p;
#pragma GCC unroll 4
    for (int i = 0; i < kVectors; ++i) {
      const Vec before =
          token.from == nullptr ? Vec{} : load_upto(token.from + row + i * kLanes, lanes(i));
      const Vec state = multiply_add(x[i], b, before * decay);
      store_upto(token.to + row + i * kLanes, state, lanes(i));
      y[i] = multiply_add(state, c, y[i]);
    }
  }
  for (int i = 0; i < kVectors; ++i) finish(p + i * kLanes, y[i], lanes(i));
}

template <class T>
void scan(const SelectiveScan& p, const StateRun& run, int64_t head, float* scratch) {
  const int64_t size = p.state_size * p.head_size;
  float *state = scratch, *b = scratch + size, *c = b + p.state_size;
  const float* from =
      run.state_in < 0 ? nullptr : p.states + run.state_in * p.slot_stride + head * size;
  const int64_t group = head / (p.num_heads / p.num_groups);
  for (int64_t token = run.first_token; token < run.first_token + run.num_tokens; ++token) {
    const T* b_row = static_cast<const T*>(p.b) + token * p.b_stride + group * p.state_size;
    const T* c_row = static_cast<const T*>(p.c) + token * p.c_stride + group * p.state_size;
    for_each_vector(p.state_size, [&](int64_t n, int64_t count) {
      store_upto(b + n, load_upto(b_row + n, count), count);
      store_upto(c + n, load_upto(c_row + n, count), count);
    });
    const float given = to_float(static_cast<const T*>(p.dt)[token * p.dt_stride + head]);
    const float step = held_within(p, softplus(given + p.dt_bias[head]));
    const int64_t slot = p.state_out[token];
    float* to = slot < 0 ? state : p.states + slot * p.slot_stride + head * size;
    const ScanToken at = {expf(step * p.a[head]), b, c, from, to};
    const T* x = static_cast<const T*>(p.x) + token * p.x_stride + head * p.head_size;
    T* out = static_cast<T*>(p.out) + (token * p.num_heads + head) * p.head_size;
    const auto inputs = [&](int64_t i, int64_t count) { return load_upto(x + i, count) * step; };
    const auto finish = [&](int64_t i, Vec y, int64_t count) {
      store_upto(out + i, multiply_add(load_upto(x + i, count), broadcast(p.d[head]), y), count);
    };
    constexpr int64_t kColumns = kScanVectors * kLanes;
    int64_t column = 0;
    for (; column + kColumns <= p.head_size; column += kColumns) {
      scan_columns<kScanVectors>(at, p.state_size, p.head_size, column, kLanes, inputs, finish);
    }
    for (; column < p.head_size; column += kLanes) {
      const int64_t count = min_of<int64_t>(kLanes, p.head_size - column);
      scan_columns<1>(at, p.state_size, p.head_size, column, count, inputs, finish);
    }
    from = to;
  }
}

template <class T, class Function>
void gated_products(const GatedNorm& p, int64_t row, Function&& function) {
  const T* x = static_cast<const T*>(p.x) + row * p.x_stride;
  const T* gate = static_cast<const T*>(p.gate) + row * p.gate_stride;
  T* out = static_cast<T*>(p.out) + row * p.size;
  for_each_vector(p.size, [&](int64_t i, int64_t count) {
    store_upto(out + i, load_upto(x + i, count) * function(load_upto(gate + i, count)), count);
  });
}

template <class T, bool kNormFirst, class Function>
void gated_norms(const GatedNorm& p, int64_t row, Function&& function) {
  for (int64_t start = 0; start < p.size; start += p.group_size) {
    const T* weight = static_cast<const T*>(p.weight) + start;
    const T* x = static_cast<const T*>(p.x) + row * p.x_stride + start;
    const T* gate = static_cast<const T*>(p.gate) + row * p.gate_stride + start;
    T* out = static_cast<T*>(p.out) + row * p.size + start;
    const auto factor = [&](int64_t i, int64_t count) {
      return function(load_upto(gate + i, count));
    };
    const auto given = [&](int64_t i, int64_t count) {
      const Vec v = load_upto(x + i, count);
      if constexpr (kNormFirst) return v;
      return v * factor(i, count);
    };
    Vec sums[2] = {};
    int turn = 0;
    for_each_vector(p.group_size, [&](int64_t i, int64_t count) {
      const Vec v = given(i, count);
      sums[turn] = multiply_add(v, v, sums[turn]);
      turn ^= 1;
    });
    const float mean = reduce_add(sums[0] + sums[1]) / static_cast<float>(p.group_size);
    const Vec scale = broadcast(1.0f / sqrtf(mean + p.eps));
    for_each_vector(p.group_size, [&](int64_t i, int64_t count) {
      Vec normed = rounded_to(out, given(i, count) * scale) * load_upto(weight + i, count);
      if constexpr (kNormFirst) normed = rounded_to(out, normed) * factor(i, count);
      store_upto(out + i, normed, count);
    });
  }
}

template <class T>
void gated_norm_rows(const GatedNorm& p, int64_t begin, int64_t end) {
  with_activation(p.act, [&](auto function) {
    for (int64_t row = begin; row < end; ++row) {
      if (p.weight == nullptr) {
        gated_products<T>(p, row, function);
      } else if (p.norm_first) {
        gated_norms<T, true>(p, row, function);
      } else {
        gated_norms<T, false>(p, row, function);
      }
    }
  });
}

}  // namespace

void causal_conv(const CausalConv& p, const StateRun& run, int64_t begin_block, int64_t end_block) {
  for (int64_t first = begin_block * kConvChannels;
       first < min_of(end_block * kConvChannels, p.num_channels); first += kConvChannels) {
    const int64_t size = min_of(kConvChannels, p.num_channels - first);
    with_type(p.dtype, [&](auto number) { convolve<decltype(number)>(p, run, first, size); });
  }
}

void selective_scan(const SelectiveScan& p, const StateRun& run, int64_t head, float* scratch) {
  with_type(p.dtype, [&](auto number) { scan<decltype(number)>(p, run, head, scratch); });
}

void gated_norm(const GatedNorm& p, int64_t begin, int64_t end) {
  with_type(p.dtype, [&](auto number) { gated_norm_rows<decltype(number)>(p, begin, end); });
}

}  // namespace vllm_lite::VLLM_LITE_ISA
