// Collectives of a tensor-parallel group of processes through shared memory.
//
// Each rank writes to its own slot. Slots have two halves that alternate: a rank that
// rewrites a half has met all others in the round between, so one barrier a round is enough.
// All ranks must call the same operations in the same order.
#pragma once

#include <cstdint>
#include <vector>

#include "cpu/kernel_table.h"

namespace vllm_lite {

class RankGroup;

// The sum over ranks of x [T, N], in float32 in the order of ranks, so that all
// have the same bits.
struct AllReduce {
  RankGroup* group;
  DType dtype;
  DType out_dtype;
  const void* x;  // [T, N], dense
  void* out;      // [T, N], dense
  int64_t size;   // N
};

class RankGroup {
 public:
  // Maps `fd`, new shared memory, and sets its size. Throws std::invalid_argument for a
  // rank out of range, std::runtime_error if memory is short.
  RankGroup(int fd, int rank, int num_ranks);
  ~RankGroup();
  RankGroup(const RankGroup&) = delete;
  RankGroup& operator=(const RankGroup&) = delete;

  // Both throw std::runtime_error once the group is broken.
  void all_reduce(const AllReduce& p, int64_t num_tokens);
  // Writes every rank's x [R, W] side by side to out [R, M]: W columns each, at the end maybe fewer.
  void all_gather(const float* x, float* out, int64_t num_rows, int64_t width, int64_t out_width);

  // Makes all ranks that wait, now or later, fail.
  void fail();
  // The first rank that failed; -1: none did.
  int failed_rank() const;
  // The rank that reached the fewest barriers.
  int slowest_rank() const;

 private:
  struct Shared;

  // Barrier: waits until all ranks have reached it.
  void meet();
  // Of this turn's half.
  float* slots() const;

  Shared* shared_;
  int64_t num_bytes_;
  int rank_;
  int num_ranks_;
  uint32_t turn_ = 0;
  // Of a sum: where each rank's part of a row lies, added once.
  std::vector<int32_t> places_;
};

inline void all_reduce(const AllReduce& p, int64_t num_tokens) {
  p.group->all_reduce(p, num_tokens);
}

}  // namespace vllm_lite
