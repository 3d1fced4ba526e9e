// The operations' launches, and the choice of a kernel by type.
#include "cuda/operations.h"

#include "cuda/cache.h"
#include "cuda/decode_launch.h"

namespace vllm_lite::cuda {
namespace {

// Thread blocks that a grid may have in its second dimension.
constexpr int64_t kMaxRows = 65535;

template <class Source, class Cached>
Failure launch_write(const CacheWrite& work, void* stream) {
  const int parts = work.num_kv_heads * work.head_size / kPart;
  const unsigned columns = (parts + kCacheThreads - 1) / kCacheThreads;
  for (int64_t first = 0; first < work.num_tokens; first += kMaxRows) {
    CacheWrite some = work;
    some.slots += first;
    for (CachedRows* rows : {&some.keys, &some.values}) {
      rows->source = static_cast<const Source*>(rows->source) + first * rows->token_stride;
    }
    const int64_t left = work.num_tokens - first;
    const dim3 grid(columns, static_cast<unsigned>(left < kMaxRows ? left : kMaxRows), 2);
    const Failure failure =
        launch(write_cache_kernel<Source, Cached>, grid, kCacheThreads, 0, stream, some);
    if (failure != nullptr) return failure;
  }
  return nullptr;
}

template <class Source>
Failure launch_write(const CacheWrite& work, DType cache, void* stream) {
  switch (cache) {
    case DType::kFloat8E4M3: return launch_write<Source, Float8E4M3>(work, stream);
    case DType::kFloat8E5M2: return launch_write<Source, Float8E5M2>(work, stream);
    default: return launch_write<Source, Source>(work, stream);
  }
}

}  // namespace

Failure decode_attention(const DecodeAttention& work, DType query, DType cache, int head_size,
                         void* stream) {
  return query == DType::kHalf ? decode_half(work, cache, head_size, stream)
                               : decode_bfloat16(work, cache, head_size, stream);
}

Failure reshape_and_cache(const CacheWrite& work, DType source, DType cache, void* stream) {
  return source == DType::kHalf ? launch_write<Half>(work, cache, stream)
                                : launch_write<BFloat16>(work, cache, stream);
}

Failure copy_blocks(const BlockCopy& work, int64_t num_pairs, void* stream) {
  constexpr int64_t kStretch = 16 * kCacheThreads;
  const unsigned stretches = static_cast<unsigned>((work.block_bytes + kStretch - 1) / kStretch);
  for (int64_t first = 0; first < num_pairs; first += kMaxRows) {
    BlockCopy some = work;
    some.pairs += 2 * first;
    const int64_t left = num_pairs - first;
    const dim3 grid(stretches, static_cast<unsigned>(left < kMaxRows ? left : kMaxRows));
    const Failure failure = launch(copy_blocks_kernel, grid, kCacheThreads, 0, stream, some);
    if (failure != nullptr) return failure;
  }
  return nullptr;
}

}  // namespace vllm_lite::cuda
