"""The operations on an NVIDIA GPU: Triton kernels, torch's look-ups and matrix products.

Weights are read and dequantised on the host, by the CPU's kernels.
"""

from __future__ import annotations

from vllm_lite.kernels.gpu.triton.attention.cache import reshape_and_cache
from vllm_lite.kernels.gpu.triton.attention.encoder import (
    encoder_attention,
    encoder_embedding,
    segment_sum,
)
from vllm_lite.kernels.gpu.triton.attention.paged import paged_attention
from vllm_lite.kernels.gpu.triton.attention.rotated_cache import rotate_and_cache
from vllm_lite.kernels.gpu.triton.counter_rng import uniforms
from vllm_lite.kernels.gpu.triton.elementwise import (
    act_and_mul,
    activation,
    mix_rows,
    rotary_embedding,
    scaled_add,
    xielu,
)
from vllm_lite.kernels.gpu.triton.norm import (
    fused_add_layer_norm,
    fused_add_rms_norm,
    gated_product,
    gated_rms_norm,
    keep_outliers,
    layer_norm,
    match_rms,
    rms_norm,
)
from vllm_lite.kernels.gpu.triton.products.experts import (
    experts_mlp,
    order_by_expert,
    pack_experts,
    route_topk,
)
from vllm_lite.kernels.gpu.triton.products.grouped_linear import (
    expand_grouped,
    gated_grouped_linear,
    grouped_linear,
    pack_grouped,
)
from vllm_lite.kernels.gpu.triton.products.linear import fixed_linear, gated_linear, head_linear
from vllm_lite.kernels.gpu.triton.products.quantized import (
    grouped_lookup,
    quantized_linear,
    quantized_lookup,
)
from vllm_lite.kernels.gpu.triton.products.row_products import normed_plain_linear, plain_linear
from vllm_lite.kernels.gpu.triton.products.scaled_linear import scaled_linear
from vllm_lite.kernels.gpu.triton.quantize import (
    act_and_mul_quantized,
    fused_add_rms_norm_quantized,
    quantize_by_scale,
    quantize_rows,
    rms_norm_quantized,
)
from vllm_lite.kernels.gpu.triton.recurrences import channel_scan, delta_rule, gated_recurrence
from vllm_lite.kernels.gpu.triton.sampling import greedy_tokens, sample_tokens, token_logprobs
from vllm_lite.kernels.gpu.triton.state import causal_conv1d, selective_scan
from vllm_lite.kernels.gpu.triton.token_mask import apply_token_mask
from vllm_lite.kernels.grouped_parts import pack_quantized
from vllm_lite.kernels.reference.gguf import dequantize_gguf
from vllm_lite.kernels.reference.linear import embedding, linear, pack_heads, pack_linear
from vllm_lite.kernels.reference.sampling import penalize_tokens
from vllm_lite.kernels.reference.words import unpack_words
