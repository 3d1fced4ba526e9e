// The kernel's arguments. Strides count elements; addresses are on the GPU.
#pragma once

#include <stdint.h>

namespace vllm_lite::cuda {

// A query's context is processed in units, whose results are merged in order. Their length
// depends only on the number of positions that the query sees, so that a
// query's result depends neither on the batch nor on how units are divided among thread blocks.
constexpr int kShortestUnit = 256;
constexpr int kMaxUnits = 32;

struct DecodeAttention {
  const void* query;  // [T, H, D]
  void* output;       // [T, H, D], dense
  const void* key_cache;
  const void* value_cache;         // both [B, K, S, D], last three dimensions dense
  const int32_t* block_table;      // [R, M]
  const int32_t* query_start_loc;  // [R + 1]
  const int32_t* seq_lens;         // [R]
  float* partials;                 // [T, H, kMaxUnits * (D + 2)] where num_splits > 1
  int64_t query_token_stride;
  int64_t query_head_stride;
  int64_t key_block_stride;
  int64_t value_block_stride;
  int64_t block_table_stride;
  int32_t num_tokens;
  int32_t num_requests;
  int32_t num_heads;
  int32_t num_kv_heads;
  int32_t num_blocks;
  int32_t block_size;
  int32_t blocks_per_request;
  int32_t sliding_window;  // 0: none
  int32_t num_splits;      // thread blocks that share a token's context, at most kMaxUnits
  int32_t min_units;       // of a thread block, where it has any
  float scale_log2;        // of scores, so that weights are powers of two
  float soft_cap_log2;     // 0: none
};

}  // namespace vllm_lite::cuda
