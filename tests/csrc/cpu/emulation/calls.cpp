// The products of the level with tiles as a library of their own, for tests: the same sources as in
// _cpu, on the emulated unit, or with the real instructions where VLLM_LITE_TRAPPED_TILES says
// that somebody answers for them (trap.cpp). Numbers and their order: those of bindings.cpp.
#include <stdint.h>
#include <string.h>

#include "cpu/isa.h"
#include "cpu/kernels/amx/products.h"
#include "cpu/kernels/kernels.h"
#include "cpu/ops.h"
#include "cpu/thread_pool.h"

namespace vllm_lite {

static_assert(VLLM_LITE_HAS_TILES);

// What the operations below take; there is no other kernel here.
const KernelTable& kernels() {
  static const KernelTable table = [] {
    KernelTable made = {};
    made.attention = &amx::kAttention;
    made.linear = amx::linear;
    made.quantize_rows = amx::quantize_rows;
    made.quantized_product = amx::quantized_product;
    return made;
  }();
  return table;
}

namespace {

template <class T>
T* pointer(int64_t address) {
  return reinterpret_cast<T*>(address);
}

float from_bits(int64_t bits) {
  const auto low = static_cast<uint32_t>(bits);
  float number;
  memcpy(&number, &low, sizeof number);
  return number;
}

}  // namespace
}  // namespace vllm_lite

using namespace vllm_lite;

extern "C" __attribute__((visibility("default"))) void vllm_lite_linear(
    int64_t x, int64_t packed, int64_t bias, int64_t out, int64_t dtype, int64_t out_dtype,
    int64_t num_tokens, int64_t num_outputs, int64_t num_inputs, int64_t x_stride,
    int64_t out_stride) {
  linear({static_cast<DType>(dtype), static_cast<DType>(out_dtype), pointer<void>(x), x_stride,
          pointer<void>(packed), pointer<float>(bias), pointer<void>(out), out_stride, num_outputs,
          num_inputs, false},
         num_tokens);
}

extern "C" __attribute__((visibility("default"))) void vllm_lite_gated_linear(
    int64_t x, int64_t packed, int64_t bias, int64_t out, int64_t dtype, int64_t num_tokens,
    int64_t num_outputs, int64_t num_inputs, int64_t x_stride, int64_t out_stride) {
  gated_linear({static_cast<DType>(dtype), static_cast<DType>(dtype), pointer<void>(x), x_stride,
                pointer<void>(packed), pointer<float>(bias), pointer<void>(out), out_stride,
                num_outputs, num_inputs, false},
               num_tokens);
}

// `scale` and `soft_cap` are the bits of a float.
extern "C" __attribute__((visibility("default"))) void vllm_lite_paged_attention(
    int64_t query, int64_t output, int64_t key_cache, int64_t value_cache, int64_t block_table,
    int64_t query_start_loc, int64_t seq_lens, int64_t alibi_slopes, int64_t sinks, int64_t lse,
    int64_t dtype, int64_t cache_dtype, int64_t num_tokens, int64_t num_heads,
    int64_t query_token_stride, int64_t query_head_stride, int64_t num_blocks,
    int64_t num_kv_heads, int64_t block_size, int64_t key_size, int64_t key_block_stride,
    int64_t key_row_stride, int64_t value_size, int64_t value_block_stride,
    int64_t value_row_stride, int64_t num_requests, int64_t blocks_per_request,
    int64_t block_table_stride, int64_t scale, int64_t sliding_window, int64_t soft_cap,
    int64_t has_row_scales, int64_t is_chunked) {
  paged_attention(
      {static_cast<DType>(dtype), static_cast<DType>(cache_dtype), pointer<void>(query),
       query_token_stride, query_head_stride, pointer<void>(output), pointer<float>(alibi_slopes),
       pointer<float>(sinks), pointer<float>(lse),
       {pointer<void>(key_cache), key_block_stride, key_row_stride, key_size},
       {pointer<void>(value_cache), value_block_stride, value_row_stride, value_size},
       num_heads, num_kv_heads, block_size, sliding_window, from_bits(scale), from_bits(soft_cap),
       has_row_scales != 0, is_chunked != 0},
      {pointer<int32_t>(block_table), block_table_stride, blocks_per_request,
       pointer<int32_t>(query_start_loc), pointer<int32_t>(seq_lens), num_requests, num_tokens,
       num_blocks});
}

extern "C" __attribute__((visibility("default"))) void vllm_lite_quantized_linear(
    int64_t x, int64_t parts, int64_t bias, int64_t out, int64_t dtype, int64_t out_dtype,
    int64_t num_tokens, int64_t num_parts, int64_t num_inputs, int64_t x_stride,
    int64_t out_stride) {
  quantized_linear({static_cast<DType>(dtype), static_cast<DType>(out_dtype), pointer<void>(x),
                    x_stride, pointer<QuantizedPart>(parts), num_parts, pointer<float>(bias),
                    pointer<void>(out), out_stride, num_inputs},
                   num_tokens);
}

extern "C" __attribute__((visibility("default"))) void vllm_lite_set_num_threads(int64_t count) {
  set_num_threads(static_cast<int>(count));
}

extern "C" __attribute__((visibility("default"))) int64_t vllm_lite_tiles_multiply_rightly() {
  return amx::tiles_multiply_rightly();
}
