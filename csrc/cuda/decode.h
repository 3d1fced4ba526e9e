// Attention of single tokens: queues one pass on a stream, and another that merges if num_splits > 1,
// and returns null or one error line. The caller checks shapes, types and alignment:
// vllm_lite/kernels/gpu/cuda/paged.py does.
#pragma once

#include "cuda/kernels.h"

namespace vllm_lite::cuda {

enum class DType : int { kHalf = 0, kBFloat16 = 1, kFloat8E4M3 = 2, kFloat8E5M2 = 3 };

using Failure = const char*;

// By the type of the queries.
Failure decode_half(const DecodeAttention& work, DType cache, int head_size, void* stream);
Failure decode_bfloat16(const DecodeAttention& work, DType cache, int head_size, void* stream);

}  // namespace vllm_lite::cuda
