// Conversion of numbers to the kernels' structs.
#include "cuda/calls.h"

#include "cuda/operations.h"

namespace {

using vllm_lite::cuda::DType;

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
  return vllm_lite::cuda::decode_attention(
      {pointer<void>(query), pointer<void>(output), pointer<void>(key_cache),
       pointer<void>(value_cache), pointer<int32_t>(block_table), pointer<int32_t>(query_start_loc),
       pointer<int32_t>(seq_lens), pointer<float>(partials), query_token_stride, query_head_stride,
       key_block_stride, value_block_stride, block_table_stride, small(num_tokens),
       small(num_requests), small(num_heads), small(num_kv_heads), small(num_blocks),
       small(block_size), small(blocks_per_request), small(sliding_window), small(num_splits),
       small(min_units), static_cast<float>(scale_log2), static_cast<float>(soft_cap_log2)},
      dtype(query_dtype), dtype(cache_dtype), small(head_size), pointer<void>(stream));
}

const char* vllm_lite_cuda_write_cache(int64_t key, int64_t value, int64_t key_cache,
                                       int64_t value_cache, int64_t slots,
                                       int64_t key_token_stride, int64_t value_token_stride,
                                       int64_t key_head_stride, int64_t value_head_stride,
                                       int64_t key_block_stride, int64_t value_block_stride,
                                       int64_t num_slots, int64_t num_tokens, int64_t num_kv_heads,
                                       int64_t block_size, int64_t head_size, int64_t dtype_number,
                                       int64_t cache_dtype, int64_t stream) {
  return vllm_lite::cuda::reshape_and_cache(
      {{pointer<void>(key), pointer<void>(key_cache), key_token_stride, key_head_stride,
        key_block_stride},
       {pointer<void>(value), pointer<void>(value_cache), value_token_stride, value_head_stride,
        value_block_stride},
       pointer<int64_t>(slots), num_slots, small(num_tokens), small(num_kv_heads),
       small(block_size), small(head_size)},
      dtype(dtype_number), dtype(cache_dtype), pointer<void>(stream));
}

const char* vllm_lite_cuda_copy_blocks(int64_t cache, int64_t pairs, int64_t block_stride_bytes,
                                       int64_t block_bytes, int64_t num_blocks, int64_t num_pairs,
                                       int64_t stream) {
  return vllm_lite::cuda::copy_blocks({pointer<void>(cache), pointer<int64_t>(pairs),
                                       block_stride_bytes, block_bytes, num_blocks},
                                      num_pairs, pointer<void>(stream));
}
