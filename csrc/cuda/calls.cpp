// Conversion of numbers to the kernel's struct.
#include "cuda/calls.h"

#include "cuda/decode.h"

namespace {

using namespace vllm_lite::cuda;

template <class T>
T* pointer(int64_t address) {
  return reinterpret_cast<T*>(static_cast<uintptr_t>(address));
}

int32_t small(int64_t number) { return static_cast<int32_t>(number); }

DType dtype(int64_t number) { return static_cast<DType>(number); }

}  // namespace

const char* vllm_lite_cuda_attend(
    int64_t query, int64_t output, int64_t key_cache, int64_t value_cache, int64_t block_table,
    int64_t query_start_loc, int64_t seq_lens, int64_t partials, int64_t query_token_stride,
    int64_t query_head_stride, int64_t key_block_stride, int64_t value_block_stride,
    int64_t block_table_stride, int64_t num_tokens, int64_t num_requests, int64_t num_heads,
    int64_t num_kv_heads, int64_t num_blocks, int64_t block_size, int64_t blocks_per_request,
    int64_t head_size, int64_t sliding_window, int64_t num_splits, int64_t min_units,
    int64_t query_dtype, int64_t cache_dtype, int64_t stream, double scale_log2,
    double soft_cap_log2) {
  const DecodeAttention work = {
      pointer<void>(query), pointer<void>(output), pointer<void>(key_cache),
      pointer<void>(value_cache), pointer<int32_t>(block_table), pointer<int32_t>(query_start_loc),
      pointer<int32_t>(seq_lens), pointer<float>(partials), query_token_stride, query_head_stride,
      key_block_stride, value_block_stride, block_table_stride, small(num_tokens),
      small(num_requests), small(num_heads), small(num_kv_heads), small(num_blocks),
      small(block_size), small(blocks_per_request), small(sliding_window), small(num_splits),
      small(min_units), static_cast<float>(scale_log2), static_cast<float>(soft_cap_log2)};
  const auto decode = dtype(query_dtype) == DType::kHalf ? decode_half : decode_bfloat16;
  return decode(work, dtype(cache_dtype), small(head_size), pointer<void>(stream));
}
