// Launches of the operations: each queues work on a stream and returns at once.
//
// Each returns null or one error line. The caller checks shapes, types and
// alignment: vllm_lite/kernels/gpu/cuda/paged.py does.
#pragma once

#include "cuda/kernels.h"

namespace vllm_lite::cuda {

enum class DType : int { kHalf = 0, kBFloat16 = 1, kFloat8E4M3 = 2, kFloat8E5M2 = 3 };

using Failure = const char*;

// One pass, and another that merges if num_splits > 1.
Failure decode_attention(const DecodeAttention& work, DType query, DType cache, int head_size,
                         void* stream);

Failure reshape_and_cache(const CacheWrite& work, DType source, DType cache, void* stream);

Failure copy_blocks(const BlockCopy& work, int64_t num_pairs, void* stream);

}  // namespace vllm_lite::cuda
