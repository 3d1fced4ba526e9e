// Writes keys and values to the paged cache, converted to its type.
#include "cpu/kernels/cached_numbers.h"
#include "cpu/kernels/kernels.h"

namespace vllm_lite::VLLM_LITE_ISA {
namespace {

template <class From, class To>
void write_row(const From* from, int64_t size, To* to) {
  if constexpr (sizeof(From) == sizeof(To)) {
    memcpy(to, from, size * sizeof(To));
  } else {
    for_each_vector(size, [&](int64_t i, int64_t count) {
      store_upto(to + i, load_upto(from + i, count), count);
    });
  }
}

constexpr float largest_code(const Int8*) { return 127.0f; }
constexpr float largest_code(const Float8E4M3*) { return 448.0f; }
constexpr float largest_code(const Float8E5M2*) { return 57344.0f; }
// Smaller rows become zeros: the inverse of their scale may overflow.
constexpr float kSmallestRow = 1e-30f;

// The row's largest number becomes the largest code. A row that is not finite reads as NaN.
template <class From, class Code>
void write_scaled_row(const From* from, int64_t size, Code* to) {
  // Compared as integers, NaN is above infinity, and infinity above all numbers.
  IntVec highest{};
  for_each_vector(size, [&](int64_t i, int64_t count) {
    const IntVec magnitude = bit_cast<IntVec>(load_upto(from + i, count)) & 0x7fffffff;
    highest = magnitude > highest ? magnitude : highest;
  });
  int32_t top = 0;
  for (int lane = 0; lane < kLanes; ++lane) top = max_of<int32_t>(top, highest[lane]);
  const float largest = bit_cast<float>(top);
  const float scale = largest / largest_code(to);
  memcpy(to + size, &scale, sizeof scale);
  if (!(largest > kSmallestRow && largest < INFINITY)) {
    memset(to, 0, size);
    return;
  }
  const float inverse = largest_code(to) / largest;
  for_each_vector(size, [&](int64_t i, int64_t count) {
    store_upto(to + i, load_upto(from + i, count) * inverse, count);
  });
}

template <class From, class To>
void write_rows(const CacheWrite& p, const RowsToCache& rows, int64_t begin, int64_t end) {
  for (int64_t token = begin; token < end; ++token) {
    const int64_t slot = p.slots[token];
    if (slot < 0) continue;
    const From* from = static_cast<const From*>(rows.source) + token * rows.token_stride;
    To* to = static_cast<To*>(rows.cache) + slot / p.block_size * rows.block_stride +
             slot % p.block_size * rows.row_stride;
    for (int64_t head = 0; head < p.num_kv_heads; ++head) {
      if constexpr (sizeof(To) == 1) {
        p.has_row_scales ? write_scaled_row(from, rows.size, to) : write_row(from, rows.size, to);
      } else {
        write_row(from, rows.size, to);
      }
      from += rows.head_stride;
      to += rows.cached_head_stride;
    }
  }
}

template <class From, class To>
void write_both(const CacheWrite& p, int64_t begin, int64_t end) {
  write_rows<From, To>(p, p.keys, begin, end);
  write_rows<From, To>(p, p.values, begin, end);
}

template <class From>
void write_from(const CacheWrite& p, int64_t begin, int64_t end) {
  switch (p.cache_dtype) {
    case DType::kFloat32: return write_both<From, float>(p, begin, end);
    case DType::kBFloat16: return write_both<From, BFloat16>(p, begin, end);
    case DType::kFloat8E4M3: return write_both<From, Float8E4M3>(p, begin, end);
    case DType::kFloat8E5M2: return write_both<From, Float8E5M2>(p, begin, end);
    case DType::kInt8: return write_both<From, Int8>(p, begin, end);
  }
}

}  // namespace

void write_cache(const CacheWrite& p, int64_t begin, int64_t end) {
  with_type(p.dtype, [&](auto number) { write_from<decltype(number)>(p, begin, end); });
}

}  // namespace vllm_lite::VLLM_LITE_ISA
