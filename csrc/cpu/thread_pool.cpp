#include "cpu/thread_pool.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <system_error>
#include <thread>
#include <vector>

#include "cpu/spin.h"

namespace vllm_lite {
namespace {

constexpr int kMaxThreads = 1024;

// Waits until ready() holds: first spins, then sleeps on `word`, which must have changed by then.
template <class Word, class Ready>
void spin_then_sleep(std::atomic<Word>& word, Ready&& ready) {
  if (spin_until([&] { return ready(word.load(std::memory_order_acquire)); })) return;
  for (Word seen = word.load(std::memory_order_acquire); !ready(seen);
       seen = word.load(std::memory_order_acquire)) {
    word.wait(seen, std::memory_order_acquire);
  }
}

// One job at a time is open. Helpers join an open job and claim ranges from a shared counter. The
// caller closes the job when no range is left and waits for those who joined, so a helper that
// never got the processor in time delays nobody.
class ThreadPool {
 public:
  explicit ThreadPool(int count) : count_(count) {}

  int count() const { return count_.load(std::memory_order_relaxed); }

  void resize(int count) {
    std::lock_guard lock(job_mutex_);
    stop_helpers();
    count_.store(count, std::memory_order_relaxed);
  }

  void run(int64_t count, int64_t grain, RangeFunction function, void* context) {
    grain = std::max<int64_t>(grain, 1);
    std::unique_lock lock(job_mutex_, std::defer_lock);
    if (count <= grain || this->count() == 1 || !lock.try_lock()) {
      if (count > 0) function(context, 0, count);
      return;
    }
    start_helpers();
    job_ = {function, context, count, grain};
    next_.store(0, std::memory_order_relaxed);
    open_job();
    work();
    close_job();
  }

 private:
  struct Job {
    RangeFunction function;
    void* context;
    int64_t count;
    int64_t grain;
  };

  // state_: a job's generation in the high bits, then the open bit, then the helpers inside.
  static constexpr uint32_t kMembers = (1u << 12) - 1;
  static constexpr uint32_t kOpen = 1u << 12;
  static constexpr uint32_t kGeneration = 1u << 13;

  void open_job() {
    const uint32_t generation = (state_.load(std::memory_order_relaxed) & ~(kGeneration - 1));
    state_.store((generation + kGeneration) | kOpen, std::memory_order_release);
    state_.notify_all();
  }

  void close_job() {
    state_.fetch_and(~kOpen, std::memory_order_acq_rel);
    spin_then_sleep(state_, [](uint32_t state) { return (state & kMembers) == 0; });
  }

  void work() {
    for (;;) {
      const int64_t begin = next_.fetch_add(job_.grain, std::memory_order_relaxed);
      if (begin >= job_.count) return;
      job_.function(job_.context, begin, std::min(begin + job_.grain, job_.count));
    }
  }

  // Joins the open job unless this helper has just left it; returns false if there is none.
  bool try_join(uint32_t last_generation) {
    uint32_t state = state_.load(std::memory_order_acquire);
    while ((state & kOpen) && (state & ~(kGeneration - 1)) != last_generation) {
      if (state_.compare_exchange_weak(state, state + 1, std::memory_order_acq_rel)) return true;
    }
    return false;
  }

  void leave() {
    const uint32_t left = state_.fetch_sub(1, std::memory_order_acq_rel) - 1;
    if ((left & kMembers) == 0 && !(left & kOpen)) state_.notify_all();
  }

  void helper(uint32_t last_generation) {
    for (;;) {
      spin_then_sleep(state_, [&](uint32_t state) {
        return stopping_.load(std::memory_order_relaxed) ||
               ((state & kOpen) && (state & ~(kGeneration - 1)) != last_generation);
      });
      if (stopping_.load(std::memory_order_relaxed)) return;
      if (!try_join(last_generation)) continue;
      last_generation = state_.load(std::memory_order_relaxed) & ~(kGeneration - 1);
      work();
      leave();
    }
  }

  void start_helpers() {
    const uint32_t generation = state_.load(std::memory_order_relaxed) & ~(kGeneration - 1);
    try {
      while (static_cast<int>(helpers_.size()) < count() - 1) {
        helpers_.emplace_back([this, generation] { helper(generation); });
      }
    } catch (const std::system_error&) {
      // The system's limit of threads: continue with those that started.
      count_.store(static_cast<int>(helpers_.size()) + 1, std::memory_order_relaxed);
    }
  }

  void stop_helpers() {
    if (helpers_.empty()) return;
    stopping_.store(true, std::memory_order_relaxed);
    state_.fetch_add(kGeneration, std::memory_order_acq_rel);
    state_.notify_all();
    for (std::thread& helper : helpers_) helper.join();
    helpers_.clear();
    stopping_.store(false, std::memory_order_relaxed);
  }

  std::mutex job_mutex_;
  std::atomic<int> count_;
  std::vector<std::thread> helpers_;
  std::atomic<bool> stopping_{false};
  Job job_{};
  alignas(64) std::atomic<uint32_t> state_{0};
  alignas(64) std::atomic<int64_t> next_{0};
};

std::atomic<ThreadPool*> g_pool{nullptr};

// Never destroyed: helpers may still sleep in it when the process ends.
ThreadPool& pool() {
  ThreadPool* current = g_pool.load(std::memory_order_acquire);
  if (current != nullptr) return *current;
  auto created = std::make_unique<ThreadPool>(std::min(available_processors(), kMaxThreads));
  static const int registered = pthread_atfork(nullptr, nullptr, [] {
    // Threads do not survive a fork: the child starts over with a pool of the same size.
    const ThreadPool* parent = g_pool.load(std::memory_order_relaxed);
    g_pool.store(new ThreadPool(parent ? parent->count() : 1), std::memory_order_release);
  });
  (void)registered;
  if (g_pool.compare_exchange_strong(current, created.get())) return *created.release();
  return *current;
}

}  // namespace

int num_threads() { return pool().count(); }

void set_num_threads(int count) {
  if (count < 1 || count > kMaxThreads) {
    throw std::invalid_argument("the number of threads must lie between 1 and 1024");
  }
  if (count != pool().count()) pool().resize(count);
}

int available_processors() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return std::max(CPU_COUNT(&set), 1);
  return static_cast<int>(std::max(std::thread::hardware_concurrency(), 1u));
}

void parallel_ranges(int64_t count, int64_t grain, RangeFunction function, void* context) {
  pool().run(count, grain, function, context);
}

}  // namespace vllm_lite
