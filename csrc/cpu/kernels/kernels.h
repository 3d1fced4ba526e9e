// The kernels of one instruction set, as its table names them.
#pragma once

#include "cpu/kernels/simd.h"

namespace vllm_lite::VLLM_LITE_ISA {

void norm(const Norm&, int64_t begin, int64_t end);
void rotary(const Rotary&, int64_t begin, int64_t end);
void activate(const Activation&, int64_t begin, int64_t end);
void scaled_add(const ScaledAdd&, int64_t begin, int64_t end);
void write_cache(const CacheWrite&, int64_t begin, int64_t end);
void route(const Route&, int64_t begin, int64_t end);
void sum_experts(const ExpertSum&, int64_t begin, int64_t end);
void gated_norm(const GatedNorm&, int64_t begin, int64_t end);
void causal_conv(const CausalConv&, const StateRun&, int64_t begin_block, int64_t end_block);
void selective_scan(const SelectiveScan&, const StateRun&, int64_t head, float* scratch);
void apply_token_mask(const TokenMask&, int64_t begin_part, int64_t end_part);
void sample(const Sampling&, int64_t begin, int64_t end, float* scratch);
void find_largest(const LargestOutputs&, int64_t begin, int64_t end);
void token_logprobs(const TokenLogprobs&, int64_t begin, int64_t end, float* scratch);
void dequantize(const Dequantize&, int64_t begin_block, int64_t end_block);
void pack_linear(const PackLinear&, int64_t begin_panel, int64_t end_panel);
void plan_slim(const PackLinear&, SlimPlan*, int64_t begin_panel, int64_t end_panel);
void pack_slim(const PackLinear&, const SlimPlan*, int64_t begin_panel, int64_t end_panel);
void linear(const Linear&, int64_t first_row, int64_t end_row, int64_t begin_panel,
            int64_t end_panel);
// linear() of slim panels, where there are no tiles.
void slim_linear(const Linear&, int64_t first_row, int64_t end_row, int64_t begin_panel,
                 int64_t end_panel);
int64_t quantized_panel_bytes(int ggml_type, int64_t num_inputs);
void pack_quantized(const PackQuantized&, int64_t begin_panel, int64_t end_panel);
void quantize_rows(const QuantizeRows&, int64_t begin_row, int64_t end_row);
void quantized_product(const QuantizedProduct&, int64_t begin_panel, int64_t end_panel);
void quantized_lookup(const QuantizedLookup&, int64_t begin, int64_t end);
extern const AttentionKernels kAttention;

}  // namespace vllm_lite::VLLM_LITE_ISA
