// Chooses a kernel for a query's type; included by one file for each, so that they compile apart.
#pragma once

#include "cuda/decode.h"
#include "cuda/decode_attention.h"

namespace vllm_lite::cuda {

template <class Query, class Cached, int kHeadSize>
Failure launch_decode(const DecodeAttention& work, void* stream) {
  if (work.num_tokens == 0) return nullptr;
  const int group = work.num_heads / work.num_kv_heads;
  const int row_tiles = (group + kRows - 1) / kRows;
  const dim3 grid(work.num_tokens * row_tiles, work.num_kv_heads, work.num_splits);
  using Tiling = DecodeTiling<Query, Cached, kHeadSize>;
  const Failure failure = launch(decode_attention_kernel<Query, Cached, kHeadSize>, grid,
                                 kDecodeThreads, Tiling::kSharedBytes, stream, work);
  if (failure != nullptr || work.num_splits == 1) return failure;
  return launch(merge_units_kernel<Query, kHeadSize>, dim3(work.num_tokens, work.num_heads),
                kHeadSize, 0, stream, work);
}

template <class Query, class Cached>
Failure launch_decode(const DecodeAttention& work, int head_size, void* stream) {
  switch (head_size) {
    case 64: return launch_decode<Query, Cached, 64>(work, stream);
    case 80: return launch_decode<Query, Cached, 80>(work, stream);
    case 96: return launch_decode<Query, Cached, 96>(work, stream);
    case 128: return launch_decode<Query, Cached, 128>(work, stream);
    case 256: return launch_decode<Query, Cached, 256>(work, stream);
    default: return "decode_attention: takes heads of 64, 80, 96, 128 or 256";
  }
}

template <class Query>
Failure launch_decode(const DecodeAttention& work, DType cache, int head_size, void* stream) {
  switch (cache) {
    case DType::kFloat8E4M3: return launch_decode<Query, Float8E4M3>(work, head_size, stream);
    case DType::kFloat8E5M2: return launch_decode<Query, Float8E5M2>(work, head_size, stream);
    default: return launch_decode<Query, Query>(work, head_size, stream);
  }
}

}  // namespace vllm_lite::cuda
