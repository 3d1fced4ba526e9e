// Paged attention of half-precision queries.
#include "cuda/decode_launch.h"

namespace vllm_lite::cuda {

Failure decode_half(const DecodeAttention& work, DType cache, int head_size, void* stream) {
  return launch_decode<Half>(work, cache, head_size, stream);
}

}  // namespace vllm_lite::cuda
