"""Every operation in plain torch: the specification that all faster implementations are tested
against, and the one declaration of names and parameters.

Knows nothing of threads or instruction sets. Arithmetic is float32 whatever the storage type; a
result is rounded to its storage type where the unfused operations would round it.
Shapes: T tokens, R requests, N hidden, H heads, K kv-heads, D head size, B blocks, S block size.
"""

from __future__ import annotations

from vllm_lite.kernels.reference import (
    attention,
    cache,
    counter_rng,
    elementwise,
    encoder,
    experts,
    gguf,
    norm,
    quantize,
    quantized,
    sampling,
    state,
    words,
)
from vllm_lite.kernels.reference import grouped_linear as grouped
from vllm_lite.kernels.reference import linear as plain
from vllm_lite.kernels.reference import scaled_linear as scaled


class Ops:
    """The operations that every implementation has."""

    embedding = staticmethod(plain.embedding)
    pack_linear = staticmethod(plain.pack_linear)
    linear = staticmethod(plain.linear)
    gated_linear = staticmethod(plain.gated_linear)
    # Weights are what pack_quantized of the same implementation returned.
    pack_quantized = staticmethod(quantized.pack_quantized)
    quantized_linear = staticmethod(quantized.quantized_linear)
    quantized_lookup = staticmethod(quantized.quantized_lookup)
    dequantize_gguf = staticmethod(gguf.dequantize_gguf)
    unpack_words = staticmethod(words.unpack_words)
    # Weights are what pack_grouped of the same implementation returned.
    pack_grouped = staticmethod(grouped.pack_grouped)
    grouped_linear = staticmethod(grouped.grouped_linear)
    grouped_lookup = staticmethod(grouped.grouped_lookup)
    rms_norm = staticmethod(norm.rms_norm)
    fused_add_rms_norm = staticmethod(norm.fused_add_rms_norm)
    layer_norm = staticmethod(norm.layer_norm)
    fused_add_layer_norm = staticmethod(norm.fused_add_layer_norm)
    match_rms = staticmethod(norm.match_rms)
    keep_outliers = staticmethod(norm.keep_outliers)
    activation = staticmethod(elementwise.activation)
    xielu = staticmethod(elementwise.xielu)
    act_and_mul = staticmethod(elementwise.act_and_mul)
    gated_product = staticmethod(elementwise.gated_product)
    scaled_add = staticmethod(elementwise.scaled_add)
    mix_rows = staticmethod(elementwise.mix_rows)
    rotary_embedding = staticmethod(elementwise.rotary_embedding)
    reshape_and_cache = staticmethod(cache.reshape_and_cache)
    paged_attention = staticmethod(attention.paged_attention)
    encoder_attention = staticmethod(encoder.encoder_attention)
    encoder_embedding = staticmethod(encoder.encoder_embedding)
    segment_sum = staticmethod(encoder.segment_sum)
    pack_heads = staticmethod(plain.pack_heads)
    head_linear = staticmethod(plain.head_linear)
    route_topk = staticmethod(experts.route_topk)
    pack_experts = staticmethod(experts.pack_experts)
    experts_mlp = staticmethod(experts.experts_mlp)
    causal_conv1d = staticmethod(state.causal_conv1d)
    selective_scan = staticmethod(state.selective_scan)
    channel_scan = staticmethod(state.channel_scan)
    delta_rule = staticmethod(state.delta_rule)
    gated_recurrence = staticmethod(state.gated_recurrence)
    gated_rms_norm = staticmethod(state.gated_rms_norm)
    apply_token_mask = staticmethod(sampling.apply_token_mask)
    penalize_tokens = staticmethod(sampling.penalize_tokens)
    greedy_tokens = staticmethod(sampling.greedy_tokens)
    uniforms = staticmethod(counter_rng.uniforms)
    sample_tokens = staticmethod(sampling.sample_tokens)
    token_logprobs = staticmethod(sampling.token_logprobs)


class CpuOps(Ops):
    """With those that only the compiled CPU kernels have: of a linear layer, the largest output."""

    linear_argmax = staticmethod(plain.linear_argmax)
    quantized_linear_argmax = staticmethod(quantized.quantized_linear_argmax)


class GpuOps(Ops):
    """With those that only GPUs have: linear layers by int8 and fp8, and fused steps."""

    fixed_linear = staticmethod(plain.fixed_linear)
    plain_linear = staticmethod(plain.plain_linear)
    normed_plain_linear = staticmethod(plain.normed_plain_linear)
    gated_grouped_linear = staticmethod(grouped.gated_grouped_linear)
    expand_grouped = staticmethod(grouped.expand_grouped)
    scaled_linear = staticmethod(scaled.scaled_linear)
    quantize_rows = staticmethod(quantize.quantize_rows)
    quantize_by_scale = staticmethod(quantize.quantize_by_scale)
    rms_norm_quantized = staticmethod(quantize.rms_norm_quantized)
    fused_add_rms_norm_quantized = staticmethod(quantize.fused_add_rms_norm_quantized)
    act_and_mul_quantized = staticmethod(quantize.act_and_mul_quantized)
    rotate_and_cache = staticmethod(cache.rotate_and_cache)
    order_by_expert = staticmethod(experts.order_by_expert)
