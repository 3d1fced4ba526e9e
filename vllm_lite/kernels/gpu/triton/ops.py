"""The operations of `reference` on an NVIDIA GPU: Triton kernels, torch's look-ups and products.

Weights are read and dequantised on the host, by the CPU's kernels.
What the files beside `reference` specify has twins here too, of the same names and arguments.
"""

from __future__ import annotations

from vllm_lite.kernels.gpu.triton.activation import (
    act_and_mul,
    activation,
    gated_linear,
    scaled_add,
)
from vllm_lite.kernels.gpu.triton.attention import paged_attention
from vllm_lite.kernels.gpu.triton.cache import reshape_and_cache
from vllm_lite.kernels.gpu.triton.experts import experts_mlp, order_by_expert, route_topk
from vllm_lite.kernels.gpu.triton.fixed_linear import fixed_linear
from vllm_lite.kernels.gpu.triton.grouped_linear import expand_grouped, grouped_linear
from vllm_lite.kernels.gpu.triton.grouped_parts import quantized_linear, quantized_lookup
from vllm_lite.kernels.gpu.triton.mask import apply_token_mask
from vllm_lite.kernels.gpu.triton.norm import (
    fused_add_layer_norm,
    fused_add_rms_norm,
    layer_norm,
    rms_norm,
)
from vllm_lite.kernels.gpu.triton.quantize import (
    fused_add_rms_norm_quantized,
    quantize_by_scale,
    quantize_rows,
    rms_norm_quantized,
)
from vllm_lite.kernels.gpu.triton.quantized_activation import act_and_mul_quantized
from vllm_lite.kernels.gpu.triton.rotary import rotary_embedding
from vllm_lite.kernels.gpu.triton.sampling import draw_tokens, greedy_tokens, token_logprobs
from vllm_lite.kernels.gpu.triton.scaled_linear import scaled_linear
from vllm_lite.kernels.gpu.triton.state import causal_conv1d, gated_rms_norm, selective_scan
from vllm_lite.kernels.grouped_parts import pack_quantized
from vllm_lite.kernels.reference.ops import (
    dequantize_gguf,
    embedding,
    linear,
    pack_experts,
    pack_linear,
)

__all__ = [
    "act_and_mul",
    "act_and_mul_quantized",
    "activation",
    "apply_token_mask",
    "causal_conv1d",
    "dequantize_gguf",
    "draw_tokens",
    "embedding",
    "expand_grouped",
    "experts_mlp",
    "fixed_linear",
    "fused_add_layer_norm",
    "fused_add_rms_norm",
    "fused_add_rms_norm_quantized",
    "gated_linear",
    "gated_rms_norm",
    "greedy_tokens",
    "grouped_linear",
    "layer_norm",
    "linear",
    "order_by_expert",
    "pack_experts",
    "pack_linear",
    "pack_quantized",
    "paged_attention",
    "quantize_by_scale",
    "quantize_rows",
    "quantized_linear",
    "quantized_lookup",
    "reshape_and_cache",
    "rms_norm",
    "rms_norm_quantized",
    "rotary_embedding",
    "route_topk",
    "scaled_add",
    "scaled_linear",
    "selective_scan",
    "token_logprobs",
]
