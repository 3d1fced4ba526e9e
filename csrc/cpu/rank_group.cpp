#include "cpu/rank_group.h"

#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <climits>
#include <cstring>
#include <ctime>
#include <stdexcept>
#include <string>

#include "cpu/isa.h"
#include "cpu/spin.h"
#include "cpu/thread_pool.h"

namespace vllm_lite {
namespace {

using Word = std::atomic<uint32_t>;

constexpr int kMaxRanks = 64;
// What passes through a slot at once stays in a shared cache.
constexpr int64_t kSlotFloats = 1 << 18;
// How long a rank sleeps before it checks the group again.
constexpr timespec kPatience = {1, 0};

// std::atomic::wait works only within one process.
void sleep_on(Word& word, uint32_t seen) {
  syscall(SYS_futex, &word, FUTEX_WAIT, seen, &kPatience, nullptr, 0);
}
void wake_all(Word& word) { syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0); }

// Elements [begin, end) of x in float32.
void widen(const char* x, DType dtype, int64_t begin, int64_t end, float* out) {
  if (dtype == DType::kFloat32) {
    std::memcpy(out + begin, x + begin * sizeof(float), (end - begin) * sizeof(float));
    return;
  }
  for (int64_t i = begin; i < end; ++i) {
    uint16_t half;
    std::memcpy(&half, x + i * sizeof half, sizeof half);
    const uint32_t bits = static_cast<uint32_t>(half) << 16;
    std::memcpy(out + i, &bits, sizeof bits);
  }
}

}  // namespace

struct RankGroup::Shared {
  alignas(64) Word failed;    // 0, or 1 + the first rank that failed
  alignas(64) Word sleepers;  // ranks that must be woken
  struct alignas(64) Meetings {
    Word count;
  } meetings[kMaxRanks];
  float slots[];
};

RankGroup::RankGroup(int fd, int rank, int num_ranks)
    : num_bytes_(sizeof(Shared) + 2 * num_ranks * kSlotFloats * sizeof(float)),
      rank_(rank),
      num_ranks_(num_ranks) {
  if (num_ranks < 1 || num_ranks > kMaxRanks || rank < 0 || rank >= num_ranks) {
    throw std::invalid_argument("a group has up to " + std::to_string(kMaxRanks) + " ranks");
  }
  void* memory = MAP_FAILED;
  if (ftruncate(fd, num_bytes_) == 0) {
    memory = mmap(nullptr, num_bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  }
  if (memory == MAP_FAILED) {
    throw std::runtime_error(std::string("no shared memory for the ranks: ") + strerror(errno));
  }
  shared_ = static_cast<Shared*>(memory);
}

RankGroup::~RankGroup() { munmap(shared_, num_bytes_); }

float* RankGroup::slots() const {
  return shared_->slots + turn_ % 2 * num_ranks_ * kSlotFloats;
}

void RankGroup::meet() {
  const uint32_t turn = ++turn_;
  Word& own = shared_->meetings[rank_].count;
  own.store(turn);
  if (shared_->sleepers.load() != 0) wake_all(own);
  const bool has_cores = available_processors() >= num_ranks_;
  for (int i = 0; i < num_ranks_; ++i) {
    Word& other = shared_->meetings[i].count;
    const auto is_there = [&] { return static_cast<int32_t>(other.load() - turn) >= 0; };
    if (is_there() || (has_cores && spin_until(is_there))) continue;
    shared_->sleepers.fetch_add(1);
    for (uint32_t seen = other.load(); !is_there() && failed_rank() < 0; seen = other.load()) {
      sleep_on(other, seen);
    }
    shared_->sleepers.fetch_sub(1);
    if (!is_there()) {
      throw std::runtime_error("rank " + std::to_string(failed_rank()) + " of the group failed");
    }
  }
}

void RankGroup::all_reduce(const AllReduce& p, int64_t num_tokens) {
  const int64_t rows_per_turn = kSlotFloats / p.size;
  if (rows_per_turn == 0) throw std::invalid_argument("a row is larger than a slot of the group");
  const int64_t part = rows_per_turn * p.size;
  places_.resize(std::min(rows_per_turn, num_tokens) * num_ranks_);
  for (size_t i = 0; i < places_.size(); ++i) {
    places_[i] = static_cast<int32_t>(i % num_ranks_ * rows_per_turn + i / num_ranks_);
  }
  for (int64_t row = 0; row < num_tokens; row += rows_per_turn) {
    const int64_t num_rows = std::min(rows_per_turn, num_tokens - row);
    const auto* x = static_cast<const char*>(p.x) + row * p.size * bytes_of(p.dtype);
    auto* out = static_cast<char*>(p.out) + row * p.size * bytes_of(p.out_dtype);
    float* all = slots();
    float* own = all + rank_ * part;
    parallel_rows(num_rows, p.size, [&](int64_t begin, int64_t end) {
      widen(x, p.dtype, begin * p.size, end * p.size, own);
    });
    meet();
    const ExpertSum sum = {p.out_dtype, all, places_.data(), nullptr, num_ranks_, p.size, out};
    parallel_rows(num_rows, p.size * num_ranks_,
                  [&](int64_t begin, int64_t end) { kernels().sum_experts(sum, begin, end); });
  }
}

void RankGroup::all_gather(const float* x, float* out, int64_t num_rows, int64_t width,
                           int64_t out_width) {
  const int64_t rows_per_turn = kSlotFloats / width;
  if (rows_per_turn == 0) throw std::invalid_argument("a row is larger than a slot of the group");
  const auto columns = [&](int rank) { return std::clamp<int64_t>(out_width - rank * width, 0, width); };
  const int64_t own_columns = columns(rank_);
  for (int64_t row = 0; row < num_rows; row += rows_per_turn) {
    const int64_t count = std::min(rows_per_turn, num_rows - row);
    float* all = slots();
    std::memcpy(all + rank_ * kSlotFloats, x + row * own_columns,
                count * own_columns * sizeof(float));
    meet();
    parallel_rows(count, out_width, [&](int64_t begin, int64_t end) {
      for (int rank = 0; rank < num_ranks_; ++rank) {
        for (int64_t i = begin; i < end; ++i) {
          std::memcpy(out + (row + i) * out_width + rank * width,
                      all + rank * kSlotFloats + i * columns(rank), columns(rank) * sizeof(float));
        }
      }
    });
  }
}

void RankGroup::fail() {
  uint32_t none = 0;
  shared_->failed.compare_exchange_strong(none, 1 + rank_);
  for (int i = 0; i < num_ranks_; ++i) wake_all(shared_->meetings[i].count);
}

int RankGroup::failed_rank() const { return static_cast<int>(shared_->failed.load()) - 1; }

int RankGroup::slowest_rank() const {
  int slowest = 0;
  for (int i = 1; i < num_ranks_; ++i) {
    const uint32_t ahead = shared_->meetings[slowest].count.load() - shared_->meetings[i].count.load();
    if (static_cast<int32_t>(ahead) > 0) slowest = i;
  }
  return slowest;
}

}  // namespace vllm_lite
