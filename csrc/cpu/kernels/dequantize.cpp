// Expansion of GGUF's block formats (layouts: the GGUF and ggml quantisation documents).
//
// Products are rounded in the order of the formats' definition, so that results equal it exactly.
#include "cpu/ggml_types.h"
#include "cpu/kernels/kernels.h"

namespace vllm_lite::VLLM_LITE_ISA {
namespace {

inline float half_to_float(const uint8_t* from) {
  uint16_t half;
  memcpy(&half, from, sizeof half);
#if defined(__F16C__)
  return _cvtsh_ss(half);
#else
  const uint32_t sign = (half & 0x8000u) << 16;
  const uint32_t magnitude = half & 0x7fffu;
  if (magnitude >= 0x7c00) return bit_cast<float>(sign | 0x7f800000u | (magnitude & 0x3ff) << 13);
  // Moving the exponent by a multiplication gets subnormal numbers right as well.
  const float value = bit_cast<float>(magnitude << 13) * 0x1p112f;
  return bit_cast<float>(sign | bit_cast<uint32_t>(value));
#endif
}

// out[i] = scale * quants[i] - minimum, for N values.
template <int N, class Quant>
inline void scale_quants(const Quant* quants, float scale, float minimum, float* out) {
  for (int i = 0; i < N; ++i) out[i] = scale * static_cast<float>(quants[i]) - minimum;
}

// Format 4_0 and its kin: 32 values with one scale. `bias` is subtracted from 4 and 5 bit values.
template <bool kHasMinimum, bool kHasFifthBit>
void expand_32(const uint8_t* block, float* out) {
  const float scale = half_to_float(block);
  const float minimum = kHasMinimum ? -half_to_float(block + 2) : 0.0f;
  const uint8_t* high = block + (kHasMinimum ? 4 : 2);
  const uint8_t* low = high + (kHasFifthBit ? 4 : 0);
  uint32_t high_bits = 0;
  if (kHasFifthBit) memcpy(&high_bits, high, sizeof high_bits);
  constexpr int kBias = kHasMinimum ? 0 : kHasFifthBit ? 16 : 8;
  int8_t quants[32];
  for (int i = 0; i < 16; ++i) {
    quants[i] = static_cast<int8_t>(((low[i] & 15) | (high_bits >> i << 4 & 16)) - kBias);
    quants[i + 16] = static_cast<int8_t>(((low[i] >> 4) | (high_bits >> (i + 12) & 16)) - kBias);
  }
  scale_quants<32>(quants, scale, minimum, out);
}

void expand_q8_0(const uint8_t* block, float* out) {
  const int8_t* quants = reinterpret_cast<const int8_t*>(block + 2);
  scale_quants<32>(quants, half_to_float(block), 0.0f, out);
}

void expand_q2_k(const uint8_t* block, float* out) {
  const uint8_t* scales = block;
  const uint8_t* bits = block + 16;
  const float scale = half_to_float(block + 80);
  const float minimum = half_to_float(block + 82);
  for (int part = 0; part < 16; ++part) {
    // 128 values share 32 bytes; a byte holds two bits of each of four runs of 32.
    const uint8_t* from = bits + part / 8 * 32 + part % 2 * 16;
    const int shift = part % 8 / 2 * 2;
    uint8_t quants[16];
    for (int i = 0; i < 16; ++i) quants[i] = from[i] >> shift & 3;
    scale_quants<16>(quants, scale * static_cast<float>(scales[part] & 15),
                     minimum * static_cast<float>(scales[part] >> 4), out + part * 16);
  }
}

void expand_q3_k(const uint8_t* block, float* out) {
  const uint8_t* high = block;
  const uint8_t* bits = block + 32;
  const uint8_t* scales = block + 96;
  const float scale = half_to_float(block + 108);
  for (int part = 0; part < 16; ++part) {
    // Six bit scales: four low bits in bytes 0 to 7, two high bits in bytes 8 to 11.
    const int low = part < 8 ? scales[part] & 15 : scales[part - 8] >> 4;
    const int factor = (low | (scales[8 + part % 4] >> part / 4 * 2 & 3) << 4) - 32;
    const uint8_t* from = bits + part / 8 * 32 + part % 2 * 16;
    const uint8_t* third = high + part % 2 * 16;
    const int shift = part % 8 / 2 * 2;
    int8_t quants[16];
    for (int i = 0; i < 16; ++i) {
      const int quant = (from[i] >> shift & 3) | (third[i] >> part / 2 & 1) << 2;
      quants[i] = static_cast<int8_t>(quant - 4);
    }
    scale_quants<16>(quants, scale * static_cast<float>(factor), 0.0f, out + part * 16);
  }
}

// The eight pairs of six bit scales and minima that formats 4_K and 5_K pack into 12 bytes.
struct ScaleAndMinimum {
  float scale;
  float minimum;
};
inline ScaleAndMinimum scale_and_minimum(const uint8_t* packed, int i) {
  if (i < 4) return {float(packed[i] & 63), float(packed[i + 4] & 63)};
  return {float((packed[i + 4] & 15) | packed[i - 4] >> 6 << 4),
          float(packed[i + 4] >> 4 | packed[i] >> 6 << 4)};
}

template <bool kHasFifthBit>
void expand_q4_k(const uint8_t* block, float* out) {
  const float scale = half_to_float(block);
  const float minimum = half_to_float(block + 2);
  const uint8_t* high = block + 16;
  const uint8_t* low = high + (kHasFifthBit ? 32 : 0);
  for (int part = 0; part < 8; ++part) {
    const uint8_t* from = low + part / 2 * 32;
    const int shift = part % 2 * 4;
    uint8_t quants[32];
    for (int i = 0; i < 32; ++i) {
      quants[i] = from[i] >> shift & 15;
      if (kHasFifthBit) quants[i] |= (high[i] >> part & 1) << 4;
    }
    const ScaleAndMinimum s = scale_and_minimum(block + 4, part);
    scale_quants<32>(quants, scale * s.scale, minimum * s.minimum, out + part * 32);
  }
}

void expand_q6_k(const uint8_t* block, float* out) {
  const uint8_t* low = block;
  const uint8_t* high = block + 128;
  const int8_t* scales = reinterpret_cast<const int8_t*>(block + 192);
  const float scale = half_to_float(block + 208);
  for (int part = 0; part < 16; ++part) {
    // Runs of 32: the first two of each 128 take the low nibbles, the others the high ones.
    const int run = part % 8 / 2;
    const uint8_t* from = low + part / 8 * 64 + run % 2 * 32 + part % 2 * 16;
    const uint8_t* top = high + part / 8 * 32 + part % 2 * 16;
    const int shift = run / 2 * 4;
    int8_t quants[16];
    for (int i = 0; i < 16; ++i) {
      const int quant = (from[i] >> shift & 15) | (top[i] >> run * 2 & 3) << 4;
      quants[i] = static_cast<int8_t>(quant - 32);
    }
    scale_quants<16>(quants, scale * static_cast<float>(scales[part]), 0.0f, out + part * 16);
  }
}

void expand_f32(const uint8_t* from, float* out) { memcpy(out, from, 16 * sizeof(float)); }
void expand_f16(const uint8_t* from, float* out) {
  for (int i = 0; i < 16; ++i) out[i] = half_to_float(from + 2 * i);
}
void expand_bf16(const uint8_t* from, float* out) {
  for (int i = 0; i < 16; i += kLanes) {
    store(out + i, load(reinterpret_cast<const BFloat16*>(from) + i));
  }
}

using Expand = void (*)(const uint8_t* block, float* out);

Expand expander(int ggml_type) {
  switch (ggml_type) {
    case kGgmlF32: return expand_f32;
    case kGgmlF16: return expand_f16;
    case kGgmlBF16: return expand_bf16;
    case kGgmlQ4_0: return expand_32<false, false>;
    case kGgmlQ4_1: return expand_32<true, false>;
    case kGgmlQ5_0: return expand_32<false, true>;
    case kGgmlQ5_1: return expand_32<true, true>;
    case kGgmlQ8_0: return expand_q8_0;
    case kGgmlQ2_K: return expand_q2_k;
    case kGgmlQ3_K: return expand_q3_k;
    case kGgmlQ4_K: return expand_q4_k<false>;
    case kGgmlQ5_K: return expand_q4_k<true>;
    case kGgmlQ6_K: return expand_q6_k;
    default: return nullptr;
  }
}

}  // namespace

void dequantize(const Dequantize& p, int64_t begin_block, int64_t end_block) {
  const Expand expand = expander(p.ggml_type);
  for (int64_t i = begin_block; i < end_block; ++i) {
    const uint8_t* block = p.blocks + i * p.block_bytes;
    const int64_t first = i * p.block_elements;
    const int64_t count = min_of(p.block_elements, p.size - first);
    if (p.dtype == DType::kFloat32 && count == p.block_elements) {
      expand(block, static_cast<float*>(p.out) + first);
      continue;
    }
    float values[256];
    if (count == p.block_elements) {
      expand(block, values);
    } else {  // only formats without blocks end within one
      uint8_t last[64] = {};
      memcpy(last, block, count * (p.block_bytes / p.block_elements));
      expand(last, values);
    }
    for_each_vector(count, [&](int64_t k, int64_t lanes) {
      if (p.dtype == DType::kFloat32) {
        store_upto(static_cast<float*>(p.out) + first + k, load_upto(values + k, lanes), lanes);
      } else {
        store_upto(static_cast<BFloat16*>(p.out) + first + k, load_upto(values + k, lanes), lanes);
      }
    });
  }
}

}  // namespace vllm_lite::VLLM_LITE_ISA
