// Attention as a function of numbers, called from Python in the GPU's module and in the emulated
// one. Addresses and strides are int64_t; it returns null or one error line.
#pragma once

#include <stdint.h>

#if defined(_WIN32)
#define VLLM_LITE_CALL extern "C" __declspec(dllexport)
#else
#define VLLM_LITE_CALL extern "C" __attribute__((visibility("default")))
#endif

VLLM_LITE_CALL const char* vllm_lite_cuda_attend(
    int64_t query, int64_t output, int64_t key_cache, int64_t value_cache, int64_t block_table,
    int64_t query_start_loc, int64_t seq_lens, int64_t partials, int64_t query_token_stride,
    int64_t query_head_stride, int64_t key_block_stride, int64_t value_block_stride,
    int64_t block_table_stride, int64_t num_tokens, int64_t num_requests, int64_t num_heads,
    int64_t num_kv_heads, int64_t num_blocks, int64_t block_size, int64_t blocks_per_request,
    int64_t head_size, int64_t sliding_window, int64_t num_splits, int64_t min_units,
    int64_t query_dtype, int64_t cache_dtype, int64_t stream, double scale_log2,
    double soft_cap_log2);
