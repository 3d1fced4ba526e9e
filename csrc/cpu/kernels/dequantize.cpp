// Dequantisation of GGUF's storage formats.
//
// Products are rounded in the order of the formats' definition, so that results equal it exactly.
#include "cpu/kernels/ggml_books.h"
#include "cpu/kernels/kernels.h"

namespace vllm_lite::VLLM_LITE_ISA {
namespace {

template <class Block>
void expand_block(const uint8_t* block, float* out) {
  for (int part = 0; part < Block::kElements / Block::kPartSize; ++part) {
    const PartScale s = part_scale<Block>(block, part);
    uint8_t codes[Block::kPartSize];
    part_codes<Block>(block, part, codes);
    for (int i = 0; i < Block::kPartSize; ++i) {
      const float value = static_cast<float>(Block::decode(codes[i]) - Block::kOffset);
      out[part * Block::kPartSize + i] = s.scale * value - s.minimum;
    }
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
    default: break;
  }
  Expand expand = nullptr;
  with_block(ggml_type, [&](auto block) { expand = expand_block<decltype(block)>; });
  return expand;
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
    } else {  // only formats without blocks end within a block
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
