// A mixture of experts: each token's MLPs by the experts that a router chose for it.
#pragma once

#include <cstdint>

#include "cpu/kernel_table.h"

namespace vllm_lite {

// One expert's packed weight. 64-bit numbers, so that Python can write a table of them.
struct ExpertWeight {
  const void* data;   // panels, QuantizedParts, or GroupedWeights whose outputs follow each other
  int64_t num_parts;  // of QuantizedParts or GroupedWeights
  const float* bias;  // of the outputs, or null
};

enum class ExpertStorage : int { kPlain, kQuantized, kGrouped };

struct Experts {
  DType dtype;  // of x and hidden
  DType out_dtype;
  ActivationKind act;
  float limit;  // as of Activation
  float shift;
  ExpertStorage storage;
  bool has_gates;      // else down(act(up(x)))
  bool scales_inputs;  // whether weights scale an expert's input rather than its output
  const void* x;  // [T, N]
  int64_t x_stride;
  const int32_t* ids;           // [T, K], dense
  const float* weights;         // [T, K], dense
  const ExpertWeight* gate_up;  // [E], each [2 I, N], or [I, N] without gates
  const ExpertWeight* down;     // [E], each [N, I]
  // Of what grouped weights read: `scale` and `zero`, where given, are [E].
  RowRounding x_rounding;
  RowRounding hidden_rounding;
  // Scratch memory.
  int32_t* places;  // [T, K]
  void* rows;       // [T K, N] float32
  void* hidden;     // [T K, 2 I], or [T K, I]
  void* out;        // [T, N], dense
  int64_t top_k;
  int64_t first_expert;  // the id of the first of the E; other ids add nothing
  int64_t num_experts;   // E
  int64_t size;          // N
  int64_t intermediate_size;
};

// The weighted sum, in the order of a token's choices, of down(act(gate(x)) * up(x)) of each. Every
// row of a GEMM equals what linear(), gated_linear(), quantized_linear() or grouped_linear() computes.
void experts(const Experts& p, int64_t num_tokens);

}  // namespace vllm_lite
