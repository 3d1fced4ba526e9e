// Paged attention of bfloat16 queries.
#include "cuda/decode_launch.h"

namespace vllm_lite::cuda {

Failure decode_bfloat16(const DecodeAttention& work, DType cache, int head_size, void* stream) {
  return launch_decode<BFloat16>(work, cache, head_size, stream);
}

}  // namespace vllm_lite::cuda
