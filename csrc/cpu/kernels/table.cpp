#include "cpu/kernels/kernels.h"

namespace vllm_lite::VLLM_LITE_ISA {

extern const KernelTable kTable;
const KernelTable kTable = {norm,        rotary,       activate,         scaled_add,
                            write_cache, route,        sum_experts,      gated_norm,
                            causal_conv, selective_scan,                 &kAttention,
                            apply_token_mask, sample,
                            find_largest, token_logprobs, dequantize,    pack_linear,
                            plan_slim,   pack_slim,    kLanes == 16,     linear,
                            quantized_panel_bytes, pack_quantized, quantize_rows,
                            quantized_product,     quantized_lookup};

}  // namespace vllm_lite::VLLM_LITE_ISA
