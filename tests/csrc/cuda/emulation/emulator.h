// Runs kernels on the host, for tests: every thread of a block is a fiber of its own, with the
// names that device.h otherwise gives from PTX.
//
// It is strict where a GPU is merely undefined. Shared memory begins as NaN. A copy lands when its
// own thread waits for it and not before; until then its place is NaN. Threads between two
// meetings run one after the other, warp by warp, upwards or downwards, so that a missing barrier
// changes results. Threads that meet at different places, and addresses outside of shared memory,
// end the process.
#pragma once

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#include <algorithm>
#include <deque>
#include <memory>
#include <vector>

#include "cuda/small_floats.h"

#define __device__
#define __global__
#define __launch_bounds__(...)

namespace vllm_lite::cuda {

struct dim3 {
  unsigned x = 1, y = 1, z = 1;
  dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};

namespace emulation {

constexpr int kWarpSize = 32;
constexpr size_t kStackBytes = 128 * 1024;

[[noreturn]] inline void fail(const char* cause) {
  fprintf(stderr, "emulated kernel: %s\n", cause);
  abort();
}

struct Copy {
  void* to;
  const void* from;
  bool is_read;
};

struct Thread {
  ucontext_t context;
  std::unique_ptr<char[]> stack;
  dim3 index;
  std::vector<Copy> copies;             // since the last commit
  std::deque<std::vector<Copy>> groups;  // committed, not yet landed
};

// Where threads wait for each other: those of a warp, or of a block.
struct Meeting {
  int expected = 0;
  const void* purpose = nullptr;
  std::vector<int> waiting;
  std::vector<void*> operands;
};

inline bool& is_backwards() {
  static bool value = false;
  return value;
}

class Block {
 public:
  template <class Kernel>
  void run(dim3 place, int num_threads, int shared_bytes, const Kernel& kernel) {
    place_ = place;
    size_ = dim3(num_threads);
    shared_.reset(static_cast<unsigned char*>(aligned_alloc(16, (shared_bytes + 31) / 16 * 16)));
    shared_bytes_ = shared_bytes;
    memset(shared_.get(), 0xff, shared_bytes);
    threads_.resize(num_threads);
    warps_.assign((num_threads + kWarpSize - 1) / kWarpSize, {});
    for (size_t w = 0; w < warps_.size(); ++w) {
      warps_[w].expected = std::min<int>(kWarpSize, num_threads - w * kWarpSize);
    }
    all_ = {};
    all_.expected = num_threads;
    body_ = [](const void* what) { (*static_cast<const Kernel*>(what))(); };
    argument_ = &kernel;
    for (int t = 0; t < num_threads; ++t) prepare(t);
    make_ready(order(num_threads));
    int finished = 0;
    while (!ready_.empty()) {
      current_ = ready_.front();
      ready_.pop_front();
      is_done_ = false;
      swapcontext(&scheduler_, &threads_[current_].context);
      finished += is_done_;
    }
    if (finished != num_threads) fail("some threads wait for others that have ended");
  }

  // Returns once every thread of the meeting came, for the same purpose; the last to come does
  // the work for all, on operands in the order of threads.
  template <class Work>
  void meet(Meeting& meeting, const void* purpose, void* operand, const Work& work) {
    if (meeting.waiting.empty()) {
      meeting.purpose = purpose;
      meeting.operands.assign(meeting.expected, nullptr);
    }
    if (meeting.purpose != purpose) fail("threads meet for different instructions");
    meeting.operands[current_ % meeting.expected] = operand;
    meeting.waiting.push_back(current_);
    if (static_cast<int>(meeting.waiting.size()) == meeting.expected) {
      work(meeting.operands);
      std::vector<int> others;
      others.swap(meeting.waiting);
      std::sort(others.begin(), others.end());
      make_ready(others);
    }
    swapcontext(&threads_[current_].context, &scheduler_);
  }

  Meeting& warp() { return warps_[current_ / kWarpSize]; }
  Meeting& all() { return all_; }
  Thread& thread() { return threads_[current_]; }
  dim3 place() const { return place_; }
  dim3 size() const { return size_; }
  unsigned char* shared() { return shared_.get(); }

  void check_shared(const void* address, int bytes) const {
    const auto* place = static_cast<const unsigned char*>(address);
    if (place < shared_.get() || place + bytes > shared_.get() + shared_bytes_) {
      fail("an address outside of shared memory");
    }
    if (reinterpret_cast<uintptr_t>(address) % 16 != 0) fail("an unaligned address");
  }

 private:
  struct Free {
    void operator()(unsigned char* memory) const { free(memory); }
  };

  static std::vector<int> order(int count) {
    std::vector<int> all(count);
    for (int t = 0; t < count; ++t) all[t] = t;
    return all;
  }

  // To the front of those that run next, so that a warp runs on for as long as it can.
  void make_ready(std::vector<int> threads) {
    if (is_backwards()) std::reverse(threads.begin(), threads.end());
    ready_.insert(ready_.begin(), threads.begin(), threads.end());
  }

  void prepare(int t) {
    Thread& thread = threads_[t];
    if (!thread.stack) thread.stack = std::make_unique<char[]>(kStackBytes);
    thread.index = dim3(t, 0, 0);
    thread.copies.clear();
    thread.groups.clear();
    getcontext(&thread.context);
    thread.context.uc_stack.ss_sp = thread.stack.get();
    thread.context.uc_stack.ss_size = kStackBytes;
    thread.context.uc_link = &scheduler_;
    makecontext(&thread.context, &Block::enter, 0);
  }

  static void enter();

  dim3 place_, size_;
  std::unique_ptr<unsigned char, Free> shared_;
  int shared_bytes_ = 0;
  std::vector<Thread> threads_;
  std::vector<Meeting> warps_;
  Meeting all_;
  std::deque<int> ready_;
  int current_ = 0;
  bool is_done_ = false;
  ucontext_t scheduler_;
  void (*body_)(const void*) = nullptr;
  const void* argument_ = nullptr;
};

inline Block& block() {
  static Block one;
  return one;
}

inline void Block::enter() {
  Block& self = block();
  self.body_(self.argument_);
  self.is_done_ = true;
}

// One operand of each lane of a warp, and what an instruction makes of all of them.
template <class Operand, class Work>
void warp_instruction(Operand& operand, const Work& work) {
  static const char purpose = 0;  // one for each instruction
  block().meet(block().warp(), &purpose, &operand, [&](const std::vector<void*>& operands) {
    if (operands.size() != kWarpSize) fail("an instruction of a whole warp in a part of one");
    Operand* lanes[kWarpSize];
    for (int lane = 0; lane < kWarpSize; ++lane) {
      lanes[lane] = static_cast<Operand*>(operands[lane]);
    }
    work(lanes);
  });
}

template <class T>
uint16_t narrow_bits(float x);

template <>
inline uint16_t narrow_bits<BFloat16>(float x) {
  const uint32_t bits = bits_of(x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>(bits >> 16 | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

template <>
inline uint16_t narrow_bits<Half>(float x) {
  const uint16_t sign = static_cast<uint16_t>(bits_of(x) >> 16 & 0x8000u);
  const uint32_t magnitude = bits_of(x) & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return sign | 0x7e00u;
  if (magnitude >= 0x477ff000u) return sign | 0x7c00u;
  if (magnitude < 0x38800000u) {
    return sign | static_cast<uint16_t>(bits_of(float_of(magnitude) * 0x1p24f + 0x1p23f) & 0xffffu);
  }
  const uint32_t rounded = magnitude + 0xfffu + (magnitude >> 13 & 1u);
  return sign | static_cast<uint16_t>((rounded >> 13) - (112u << 10));
}

template <class T>
float half_of(uint32_t pair, int place) {
  return widen(T{static_cast<uint16_t>(pair >> 16 * place)});
}

template <int kMatrices, bool kIsTransposed>
void load(uint32_t (&to)[kMatrices], const void* row) {
  struct Operand {
    uint32_t* to;
    const void* row;
  } operand = {to, row};
  warp_instruction(operand, [](Operand** lanes) {
    for (int matrix = 0; matrix < kMatrices; ++matrix) {
      uint16_t elements[8][8];
      for (int r = 0; r < 8; ++r) {
        const void* from = lanes[matrix * 8 + r]->row;
        block().check_shared(from, 16);
        memcpy(elements[r], from, 16);
      }
      for (int lane = 0; lane < kWarpSize; ++lane) {
        const int g = lane / 4, t = lane % 4;
        const uint32_t low = kIsTransposed ? elements[2 * t][g] : elements[g][2 * t];
        const uint32_t high = kIsTransposed ? elements[2 * t + 1][g] : elements[g][2 * t + 1];
        lanes[lane]->to[matrix] = low | high << 16;
      }
    }
  });
}

// For the tests: from now on the last of a block's threads run first.
extern "C" __attribute__((used, visibility("default"))) inline void vllm_lite_run_backwards(
    int64_t is_wanted) {
  is_backwards() = is_wanted != 0;
}

}  // namespace emulation

#define threadIdx (::vllm_lite::cuda::emulation::block().thread().index)
#define blockIdx (::vllm_lite::cuda::emulation::block().place())
#define blockDim (::vllm_lite::cuda::emulation::block().size())

using std::max;
using std::min;

inline void __syncthreads() {
  static const char purpose = 0;
  auto& block = emulation::block();
  block.meet(block.all(), &purpose, nullptr, [](const std::vector<void*>&) {});
}

inline unsigned char* shared_memory() { return emulation::block().shared(); }

inline void copy_async(void* to, const void* from, bool is_read) {
  emulation::block().check_shared(to, 16);
  if (reinterpret_cast<uintptr_t>(from) % 16 != 0) emulation::fail("an unaligned source");
  memset(to, 0xff, 16);
  emulation::block().thread().copies.push_back({to, from, is_read});
}

inline void commit_copies() {
  auto& thread = emulation::block().thread();
  thread.groups.push_back(std::move(thread.copies));
  thread.copies.clear();
}

template <int kPending>
void wait_copies() {
  auto& groups = emulation::block().thread().groups;
  for (; groups.size() > kPending; groups.pop_front()) {
    for (const emulation::Copy& copy : groups.front()) {
      if (copy.is_read) {
        memcpy(copy.to, copy.from, 16);
      } else {
        memset(copy.to, 0, 16);
      }
    }
  }
}

template <int kMatrices>
void load_matrices(uint32_t (&to)[kMatrices], const void* row) {
  emulation::load<kMatrices, false>(to, row);
}

template <int kMatrices>
void load_transposed(uint32_t (&to)[kMatrices], const void* row) {
  emulation::load<kMatrices, true>(to, row);
}

template <class T>
void multiply_tiles(float (&sum)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  struct Operand {
    float* sum;
    const uint32_t* a;
    uint32_t b[2];
  } operand = {sum, a, {b0, b1}};
  emulation::warp_instruction(operand, [](Operand** lanes) {
    float rows[16][16], columns[8][16];
    for (int lane = 0; lane < emulation::kWarpSize; ++lane) {
      const int g = lane / 4, t = lane % 4;
      for (int e = 0; e < 2; ++e) {
        for (int i = 0; i < 4; ++i) {
          rows[g + i % 2 * 8][2 * t + i / 2 * 8 + e] = emulation::half_of<T>(lanes[lane]->a[i], e);
        }
        for (int i = 0; i < 2; ++i) {
          columns[g][2 * t + 8 * i + e] = emulation::half_of<T>(lanes[lane]->b[i], e);
        }
      }
    }
    for (int lane = 0; lane < emulation::kWarpSize; ++lane) {
      for (int i = 0; i < 4; ++i) {
        const float* row = rows[lane / 4 + i / 2 * 8];
        const float* column = columns[lane % 4 * 2 + i % 2];
        for (int k = 0; k < 16; ++k) lanes[lane]->sum[i] += row[k] * column[k];
      }
    }
  });
}

inline float exchange(float value, int mask) {
  struct Operand {
    float value, result;
    int mask;
  } operand = {value, 0.0f, mask};
  emulation::warp_instruction(operand, [](Operand** lanes) {
    for (int lane = 0; lane < emulation::kWarpSize; ++lane) {
      lanes[lane]->result = lanes[lane ^ lanes[lane]->mask]->value;
    }
  });
  return operand.result;
}

inline float power_of_two(float x) { return exp2f(x); }
inline float multiply(float a, float b) { return a * b; }
inline float multiply_add(float a, float b, float c) { return fmaf(a, b, c); }

template <class T>
uint32_t pack(float low, float high) {
  return emulation::narrow_bits<T>(low) |
         static_cast<uint32_t>(emulation::narrow_bits<T>(high)) << 16;
}

template <class T>
uint32_t multiply_pairs(uint32_t a, uint32_t b) {
  using emulation::half_of;
  return pack<T>(half_of<T>(a, 0) * half_of<T>(b, 0), half_of<T>(a, 1) * half_of<T>(b, 1));
}

inline uint32_t select_bytes(uint32_t a, uint32_t b, uint32_t selector) {
  const uint64_t both = static_cast<uint64_t>(b) << 32 | a;
  uint32_t result = 0;
  for (int i = 0; i < 4; ++i) {
    const uint32_t byte = both >> 8 * (selector >> 4 * i & 7) & 0xff;
    result |= byte << 8 * i;
  }
  return result;
}

template <class Work>
const char* launch(void (*kernel)(Work), dim3 grid, int threads, int shared_bytes, void*,
                   const Work& work) {
  for (unsigned z = 0; z < grid.z; ++z) {
    for (unsigned y = 0; y < grid.y; ++y) {
      for (unsigned x = 0; x < grid.x; ++x) {
        emulation::block().run(dim3(x, y, z), threads, shared_bytes, [&] { kernel(work); });
      }
    }
  }
  return nullptr;
}

}  // namespace vllm_lite::cuda
