// Writing keys and values into the paged cache, and copying its blocks: 16 bytes a thread.
#pragma once

#include "cuda/device.h"
#include "cuda/kernels.h"

namespace vllm_lite::cuda {

constexpr int kCacheThreads = 256;
constexpr int kPart = 8;  // elements of a thread

struct alignas(16) Bytes16 {
  uint32_t words[4];
};

struct alignas(8) Bytes8 {
  uint32_t words[2];
};

// Stores kPart elements of two bytes as they are.
template <class Source>
__device__ inline void store_part(const Bytes16& part, Source* to) {
  *reinterpret_cast<Bytes16*>(to) = part;
}

template <class Source>
__device__ inline float unpack(uint32_t pair, int place) {
  return widen(Source{static_cast<uint16_t>(pair >> 16 * place)});
}

template <class Source, class Float8>
__device__ inline void store_narrow(const Bytes16& part, Float8* to) {
  Bytes8 narrow = {};
#pragma unroll
  for (int i = 0; i < kPart; ++i) {
    const uint32_t code = encode<Float8>(unpack<Source>(part.words[i / 2], i % 2)).bits;
    narrow.words[i / 4] |= code << 8 * (i % 4);
  }
  *reinterpret_cast<Bytes8*>(to) = narrow;
}

// Thread blocks: (parts of a token's heads, token, keys or values). A negative slot is skipped,
// and so is one beyond the cache.
template <class Source, class Cached>
__global__ void __launch_bounds__(kCacheThreads) write_cache_kernel(const CacheWrite p) {
  const int parts_of_head = p.head_size / kPart;
  const int part = blockIdx.x * kCacheThreads + threadIdx.x;
  if (part >= p.num_kv_heads * parts_of_head) return;
  const int64_t token = blockIdx.y;
  const int64_t slot = p.slots[token];
  if (slot < 0 || slot >= p.num_slots) return;
  // Field by field: selecting the whole struct would go through memory.
  const bool is_keys = blockIdx.z == 0;
  const void* source = is_keys ? p.keys.source : p.values.source;
  void* cache = is_keys ? p.keys.cache : p.values.cache;
  const int64_t token_stride = is_keys ? p.keys.token_stride : p.values.token_stride;
  const int64_t head_stride = is_keys ? p.keys.head_stride : p.values.head_stride;
  const int64_t block_stride = is_keys ? p.keys.block_stride : p.values.block_stride;
  const int64_t head = part / parts_of_head;
  const int column = part % parts_of_head * kPart;
  const Source* from =
      static_cast<const Source*>(source) + token * token_stride + head * head_stride + column;
  Cached* to = static_cast<Cached*>(cache) + slot / p.block_size * block_stride +
               (head * p.block_size + slot % p.block_size) * p.head_size + column;
  const Bytes16 bytes = *reinterpret_cast<const Bytes16*>(from);
  if constexpr (sizeof(Cached) == 1) {
    store_narrow<Source>(bytes, to);
  } else {
    store_part(bytes, to);
  }
}

// Thread blocks: (parts of a block, pair). Pairs beyond the cache are skipped.
static __global__ void __launch_bounds__(kCacheThreads) copy_blocks_kernel(const BlockCopy p) {
  const int64_t byte = (static_cast<int64_t>(blockIdx.x) * kCacheThreads + threadIdx.x) * 16;
  const int64_t from = p.pairs[2 * blockIdx.y];
  const int64_t to = p.pairs[2 * blockIdx.y + 1];
  if (byte >= p.block_bytes || from < 0 || from >= p.num_blocks || to < 0 || to >= p.num_blocks) {
    return;
  }
  unsigned char* cache = static_cast<unsigned char*>(p.cache);
  *reinterpret_cast<Bytes16*>(cache + to * p.block_stride_bytes + byte) =
      *reinterpret_cast<const Bytes16*>(cache + from * p.block_stride_bytes + byte);
}

}  // namespace vllm_lite::cuda
