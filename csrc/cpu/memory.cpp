#include "cpu/memory.h"

#include <atomic>
#include <chrono>

#include "cpu/thread_pool.h"

namespace vllm_lite {
namespace {

// Large enough that claiming a range costs little compared with reading it.
constexpr int64_t kRangeBytes = 256 * 1024;
constexpr int64_t kWords = kRangeBytes / static_cast<int64_t>(sizeof(uint64_t));

// Several sums, so that reading does not wait for adding.
uint64_t sum_words(const uint64_t* words) {
  uint64_t sums[8] = {};
  for (int64_t i = 0; i < kWords; i += 8) {
    for (int64_t k = 0; k < 8; ++k) sums[k] += words[i + k];
  }
  uint64_t total = 0;
  for (uint64_t sum : sums) total += sum;
  return total;
}

}  // namespace

double read_seconds(const void* data, int64_t num_bytes) {
  const auto* words = static_cast<const uint64_t*>(data);
  // Keeps the compiler from removing the sums.
  std::atomic<uint64_t> total{0};
  const auto begin = std::chrono::steady_clock::now();
  parallel_for(num_bytes / kRangeBytes, 1, [&](int64_t first, int64_t end) {
    uint64_t sum = 0;
    for (int64_t range = first; range < end; ++range) sum += sum_words(words + range * kWords);
    total.fetch_add(sum, std::memory_order_relaxed);
  });
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace vllm_lite
