// The ranks of a tensor-parallel group, processes that meet in shared memory.
//
// What a rank brings lies in a slot of its own. Slots come in two halves that take turns: a rank that
// writes to a half again has seen all others at the turn between, so that one meeting a turn is enough.
// All ranks must call the same operations in the same order.
#pragma once

#include <cstdint>
#include <vector>

#include "cpu/kernel_table.h"

namespace vllm_lite {

class RankGroup;

// The sum over the ranks of x [T, N], which is added up in float32 in the order of ranks, so that all
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
  // Maps `fd`, new shared memory that this makes large enough. Throws std::invalid_argument for a
  // rank that is none, std::runtime_error where memory does not reach.
  RankGroup(int fd, int rank, int num_ranks);
  ~RankGroup();
  RankGroup(const RankGroup&) = delete;
  RankGroup& operator=(const RankGroup&) = delete;

  // Both throw std::runtime_error once the group is broken.
  void all_reduce(const AllReduce& p, int64_t num_tokens);
  // Writes every rank's x [R, W] side by side to out [R, M]: W columns each, the last ranks maybe less.
  void all_gather(const float* x, float* out, int64_t num_rows, int64_t width, int64_t out_width);

  // Lets every rank that waits, now or later, fail.
  void fail();
  // The first rank that failed; -1: none did.
  int failed_rank() const;
  // The rank that came to the fewest meetings.
  int slowest_rank() const;

 private:
  struct Shared;

  // Waits until all ranks have come as often as this one.
  void meet();
  // Of this turn's half.
  float* slots() const;

  Shared* shared_;
  int64_t num_bytes_;
  int rank_;
  int num_ranks_;
  uint32_t turn_ = 0;
  // Of a sum: where each rank's part of a row lies, and that it counts once.
  std::vector<int32_t> places_;
  std::vector<float> ones_;
};

}  // namespace vllm_lite
