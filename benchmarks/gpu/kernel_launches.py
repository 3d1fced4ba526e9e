"""Launches every Triton kernel as the engine would, on tensors without storage, and records it.

Knows the operations and the shapes of models, not what launches are used for.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from triton.runtime.jit import JITFunction

from vllm_lite.kernels.codebook_weight import CodebookWeight, PackedWeight
from vllm_lite.kernels.gpu import tuning
from vllm_lite.kernels.gpu.triton import ops
from vllm_lite.kernels.gpu.triton.products import row_products
from vllm_lite.kernels.gpu.triton.products.linear import add_parts
from vllm_lite.kernels.gpu.triton.products.quantized_experts import quantized_experts_linear
from vllm_lite.kernels.grouped_gguf import from_gguf
from vllm_lite.kernels.grouped_weight import make_grouped
from vllm_lite.kernels.reference.elementwise import ACTIVATIONS
from vllm_lite.kernels.reference.experts import ExpertStack, Routing
from vllm_lite.kernels.reference.norm import InputNorm
from vllm_lite.kernels.stacked_weights import QuantizedStack

# name, query heads, kv-heads, head size, hidden size, intermediate size
MODELS = (
    ("SmolLM2-135M", 9, 3, 64, 576, 1536),
    ("Llama-3.2-1B", 32, 8, 64, 2048, 8192),
    ("Qwen3-0.6B", 16, 8, 128, 1024, 3072),
    ("Llama-3.1-8B", 32, 8, 128, 4096, 14336),
    ("Gemma-2-2B", 8, 4, 256, 2304, 9216),
)
NARROW = (torch.int8, torch.float8_e4m3fn)
# Bytes of a block of 256 values, by the type's number: Q4_0, Q4_1, Q8_0, Q4_K, Q5_K, Q6_K.
GGUF_BYTES = {2: 144, 3: 160, 8: 272, 12: 144, 13: 176, 14: 210}
Launch = tuple[Any, tuple[Any, ...], dict[str, Any]]


@contextmanager
def caught_launches(target: int) -> Iterator[list[Launch]]:
    """Collect launches in the `with` block, for a GPU of `target`."""
    launches: list[Launch] = []
    run, real_target = JITFunction.run, tuning.target

    def catch(kernel: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        launches.append((kernel, args, kwargs))

    JITFunction.run, tuning.target = catch, lambda _device: target
    try:
        yield launches
    finally:
        JITFunction.run, tuning.target = run, real_target


@contextmanager
def processors(count: int) -> Iterator[None]:
    """Pretend that the device has `count` processors."""
    real, tuning.processor_count = tuning.processor_count, lambda _device: count
    try:
        yield
    finally:
        tuning.processor_count = real


@contextmanager
def attention_tiles(**changes: Any) -> Iterator[None]:
    """Change fields of all of attention's tiles in the `with` block."""
    real = tuning.attention_tile
    tuning.attention_tile = lambda *work: replace(real(*work), **changes)
    try:
        yield
    finally:
        tuning.attention_tile = real


def tensor(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def launch_everything() -> None:
    """Launch each operation in each model's shapes; linear layers once for each tile."""
    for model in MODELS:
        launch_layers(*model[1:])
    launch_logits()
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        x, weight = tensor(8, 4096, dtype=dtype), tensor(4096, 4096, dtype=dtype)
        ops.fixed_linear(x, weight, None, dtype)
        ops.fixed_linear(x, weight, tensor(4096, dtype=dtype), torch.float32)
    launch_few()
    for rows in (16, 64, 512):
        launch_grouped(rows)
    for rows in (64, 512):
        launch_scaled(rows)
    for rows in (1, 64, 512):
        launch_experts(rows)
    launch_latents()
    launch_values()
    launch_encoders()
    launch_states()


def launch_layers(heads: int, kv_heads: int, size: int, hidden: int, intermediate: int) -> None:
    """Launch a layer's other operations; attention in each of its modes."""
    block_size, blocks, rows = 16, 64, 8
    cache = tensor(1000, kv_heads, block_size, size)
    x, weight = tensor(rows, hidden), tensor(hidden)
    ops.rms_norm(x, weight, 1e-5)
    ops.fused_add_rms_norm(x, tensor(rows, hidden), weight, 1e-5)
    for dtype in NARROW:
        ops.rms_norm_quantized(x, weight, 1e-5, dtype)
        ops.fused_add_rms_norm_quantized(x, tensor(rows, hidden), weight, 1e-5, dtype)
        ops.quantize_rows(tensor(rows, intermediate), dtype)
    for dtype in NARROW:
        ops.act_and_mul_quantized(tensor(rows, 2 * intermediate), "silu", dtype)
    for name in ACTIVATIONS:
        ops.act_and_mul(tensor(rows, 2 * intermediate), name)
        ops.activation(tensor(rows, intermediate), name)
    ops.xielu(tensor(rows, intermediate), 0.8, 0.8, 0.5, -1e-6)
    wide = tensor(hidden, dtype=torch.float32)
    for bias in (None, weight):
        ops.layer_norm(x, weight, bias, 1e-5)
        ops.fused_add_layer_norm(x, tensor(rows, hidden), weight, bias, 1e-5)
    ops.rms_norm(x, wide, 1e-5)
    ops.fused_add_rms_norm(x, tensor(rows, hidden), wide, 1e-5)
    ops.scaled_add(x, None, 24.0)
    ops.scaled_add(x, tensor(rows, hidden), 0.5, 3.0)
    streams, factors = tensor(rows, 4, hidden), tensor(rows, 4, 4)
    ops.mix_rows(streams, factors, streams)
    ops.mix_rows(streams, None, None, 0.25, weight)
    ops.match_rms(x, tensor(rows, hidden), 1e-5)
    ops.keep_outliers(x, 1.6)
    index = tensor(rows, dtype=torch.int64)
    query, key = tensor(rows, heads, size), tensor(rows, kv_heads, size)
    turns = tensor(4096, size, dtype=torch.float32)
    ops.rotary_embedding(index, query, key, turns)
    joined, row = tensor(rows, heads + 2 * kv_heads, size), tensor(size)
    for weights in (None, (row, row)):
        ops.rotate_and_cache(joined, index, turns, True, cache, cache, index, weights, 1e-6)
    scaled = tensor(1000, kv_heads, block_size, size + 4, dtype=torch.int8)
    caches = [cache, scaled, tensor(*cache.shape, dtype=torch.float8_e4m3fn)]
    for stored in caches:
        ops.reshape_and_cache(key, key, stored, stored, index)
    # Tokens and requests: decode, whole and split; prompts beside single tokens, the same.
    for count, num_tokens, num_requests in ((1, 8, 8), (132, 8, 8), (1, 64, 2), (132, 64, 2)):
        query = tensor(num_tokens, heads, size)
        table = tensor(num_requests, blocks, dtype=torch.int32)
        starts = tensor(num_requests + 1, dtype=torch.int32)
        lens = tensor(num_requests, dtype=torch.int32)
        with processors(count):
            # Few prompts are so few that they are split.
            for stored in caches[:1] if (count, num_tokens) == (132, 64) else caches:
                ops.paged_attention(query, stored, stored, table, starts, lens, 0.1)
            if size == 64:  # what few models ask for
                per_head = tensor(heads, dtype=torch.float32)
                both = {"alibi_slopes": per_head, "sinks": per_head}
                where = (cache, cache, table, starts, lens)
                ops.paged_attention(query, *where, 0.1, 128, 30.0, **both)
    if tuning.target(x.device) >= 90:
        cache = tensor(1000, kv_heads, 64, size)
        where = (tensor(1, blocks, dtype=torch.int32), tensor(2, dtype=torch.int32))
        with attention_tiles(descriptor_stages=2):
            lens = tensor(1, dtype=torch.int32)
            ops.paged_attention(query, cache, cache, *where, lens, 0.1)


def launch_logits() -> None:
    """Launch operations on logits."""
    rows, size = 8, 131072
    logits = tensor(rows, size, dtype=torch.float32)
    index = tensor(rows, dtype=torch.int64)
    share = tensor(rows, dtype=torch.float32)
    bits = tensor(rows, size // 32, dtype=torch.int32)
    ops.apply_token_mask(logits, index, bits)
    chances = tensor(rows, dtype=torch.float64)
    ops.greedy_tokens(logits)
    ops.uniforms(index, index)
    ops.sample_tokens(logits, share, share, index, share, chances)
    for num_top in (0, 20):
        ops.token_logprobs(logits, index, index, num_top)


def launch_scaled(rows: int) -> None:
    """Launch linear layers by int8 and fp8: one scale an output, and blocks of scales."""
    for dtype in NARROW:
        x, weight = tensor(rows, 4096, dtype=dtype), tensor(4096, 4096, dtype=dtype)
        for outputs, groups in ((4096, 1), (32, 32)):
            scales = tensor(rows, groups, dtype=torch.float32)
            weight_scales = tensor(outputs, groups, dtype=torch.float32)
            for count in (1, 132):
                with processors(count):
                    ops.scaled_linear(x, scales, weight, weight_scales, None, torch.bfloat16)
    ops.quantize_rows(tensor(rows, 4096), torch.float8_e4m3fn, 128)
    scale = tensor(1, dtype=torch.float32)
    ops.quantize_by_scale(tensor(rows, 4096), scale, torch.float8_e4m3fn)


def launch_few() -> None:
    """Launch linear layers of few rows, also by plain weights and with an activation."""
    plain = torch.bfloat16
    weight = from_gguf(tensor(8192 * 16 * 160, dtype=torch.uint8), 3, 8192)
    with processors(132):
        for rows in (1, 4, 8):
            launch_scaled(rows)
            launch_grouped(rows)
        for rows in (1, 4):
            ops.gated_grouped_linear(tensor(rows, 4096), weight, None, "silu")
        for rows in (1, row_products.MOST_ROWS):
            for outputs, activation in ((28672, "silu"), (6144, ""), (4096, ""), (1024, "")):
                x = tensor(rows, 4096)
                ops.plain_linear(x, tensor(outputs, 4096), None, plain, activation)
            for outputs, activation in ((28672, "silu"), (6144, "")):
                norm = InputNorm(tensor(rows, 4096), tensor(4096), 1e-5)
                by = (tensor(outputs, 4096), None, plain, activation)
                ops.normed_plain_linear(tensor(rows, 4096), norm, *by)
        parts = tensor(3, 8, 8192, dtype=torch.float32)
        add_parts(tensor(8, 4096), parts, None, "silu")


def launch_grouped(rows: int) -> None:
    """Launch linear layers and look-ups by grouped weights."""
    x, ids = tensor(rows, 4096), tensor(rows, dtype=torch.int64)
    weights = [
        from_gguf(tensor(4096 * 16 * size, dtype=torch.uint8), kind, 4096)
        for kind, size in GGUF_BYTES.items()
    ]
    for bits in (4, 8):
        codes, zeros = tensor(4096, 4096, dtype=torch.uint8), tensor(4096, 32, dtype=torch.uint8)
        scales = tensor(4096, 32, dtype=torch.float16)
        weights.append(make_grouped(codes, scales, bits, 1, zeros=zeros))
    for bits, size in ((2, 128), (3, 128), (4, 16), (8, 4096)):
        codes, table = tensor(4096, 4096, dtype=torch.uint8), tensor(2**bits, dtype=torch.float32)
        kind = torch.float8_e4m3fn if size == 16 else torch.float32
        scales = tensor(4096, 4096 // size, dtype=kind)
        supers = tensor(4096, 1, dtype=torch.float32) if size == 16 else None
        grouped = make_grouped(codes, scales, bits, table=table, super_scales=supers)
        weights.append(ops.pack_grouped(grouped))
    for weight in [*weights, *codebooks()]:
        ops.grouped_linear(x, weight)
        ops.expand_grouped(weight, torch.bfloat16)
        ops.grouped_lookup(weight, ids, torch.bfloat16)
        launch_packed_experts(rows, weight)


def launch_packed_experts(rows: int, weight: PackedWeight) -> None:
    """Launch a mixture of 32 experts that a weight's outputs are divided among."""
    stack = QuantizedStack((weight,), None, None, 32)
    pairs = 2 * rows
    tile = tuning.product_tile("int4_groups", max(1, pairs // 32), weight.codes.device)
    order = ops.order_by_expert(tensor(rows, 2, dtype=torch.int32), 32, tile.block_m)
    out, shares = tensor(pairs, 128), tensor(pairs, dtype=torch.float32)
    quantized_experts_linear(out, tensor(rows, 4096), stack, order, tile, 2, None)
    quantized_experts_linear(out, tensor(pairs, 4096), stack, order, tile, 1, shares)


def codebooks() -> Iterator[CodebookWeight]:
    """Weights [4096, 4096] by codebooks: those of GGUF's IQ types, of Q1_0, and AQLM's two."""

    def plane(*shape: int) -> torch.Tensor:
        return tensor(*shape, dtype=torch.uint8)

    for vector, high_bits, num_books, has_signs, group_size in (
        *((8, high, 1, True, 32) for high in (0, 1, 2)),
        *((4, high, 1, True, 32) for high in (0, 1)),
        (8, 4, 1, False, 32),
        (8, 0, 1, False, 0),
        (8, 8, 1, False, 0),
        (8, 0, 2, False, 0),
    ):
        count = 4096 // vector
        yield CodebookWeight(
            codes=plane(num_books, count, 4096),
            high_codes=plane(num_books, count * high_bits // 8, 4096) if high_bits else None,
            signs=plane(512, 4096) if has_signs else None,
            odds=plane(4096 // (2 * group_size), 4096) if group_size else None,
            scales=tensor(16 if group_size else 1, 4096, dtype=torch.float32),
            books=tensor(num_books, 1 << (8 + high_bits), vector, dtype=torch.float32),
            group_size=group_size,
            num_outputs=4096,
            num_inputs=4096,
        )


def launch_experts(rows: int) -> None:
    """Launch a mixture of 128 experts, 8 for a token."""
    weights, ids = ops.route_topk(tensor(rows, 128), Routing(top_k=8))
    ops.route_topk(tensor(rows, 128), Routing(top_k=8), factors=tensor(128, dtype=torch.float32))
    gate_up, down = tensor(128, 1536, 2048), tensor(128, 2048, 768)
    ops.experts_mlp(
        tensor(16 * rows, 2048), ids.repeat(16, 1), weights, *map(ExpertStack, (gate_up, down))
    )
    for dtype in NARROW:
        ops.act_and_mul_quantized(tensor(rows, 2048), "gelu", dtype)


def launch_latents() -> None:
    """Launch latent attention of DeepSeek-V2-Lite and MiniCPM3, and its products by heads."""
    rows = 8
    for heads, nope, rank, rope in ((16, 128, 512, 64), (40, 64, 256, 32)):
        keys = ops.pack_heads(tensor(heads, rank, nope))
        query = ops.head_linear(tensor(rows, heads, nope + rope), keys)
        ops.head_linear(query[..., :rank], ops.pack_heads(tensor(heads, nope, rank)))
        for dtype in (torch.bfloat16, torch.float8_e4m3fn):
            cache = tensor(1000, 1, 16, rank + rope, dtype=dtype)
            caches = cache, cache[..., :rank]
            for count, requests in ((1, rows), (132, rows), (1, 2)):
                table = tensor(requests, 64, dtype=torch.int32)
                starts = tensor(requests + 1, dtype=torch.int32)
                with processors(count):
                    ops.paged_attention(query, *caches, table, starts, starts[1:], 0.1)


def launch_values() -> None:
    """Launch MiMo-V2-Flash's attention, whose values are narrower than its keys."""
    caches = [tensor(1000, 4, 16, size) for size in (192, 128)]
    for requests in (2, 8):
        table, lens = tensor(requests, 64, dtype=torch.int32), tensor(requests, dtype=torch.int32)
        starts = tensor(requests + 1, dtype=torch.int32)
        for count in (1, 132):
            with processors(count):
                ops.paged_attention(tensor(8, 64, 192), *caches, table, starts, lens, 0.1)


def launch_encoders() -> None:
    """Launch operations of all-MiniLM-L6-v2, BGE-M3 and Qwen3-Embedding, and rare terms."""
    starts, index = tensor(5, dtype=torch.int32), tensor(64, dtype=torch.int64)
    for heads, kv_heads, size in ((12, 12, 32), (16, 16, 64), (16, 8, 128)):
        width = heads * size
        query, key, value = (
            tensor(64, (heads + 2 * kv_heads) * size)
            .unflatten(1, (-1, size))
            .split_with_sizes([heads, kv_heads, kv_heads], 1)
        )
        ops.encoder_attention(query, key, value, starts, 0.1)
        ops.encoder_attention(query, key, value, starts, 0.1, 64)
        slopes = tensor(heads, dtype=torch.float32)
        ops.encoder_attention(query, key, value, starts, 0.1, 0, 30.0, alibi_slopes=slopes)
        terms = tensor(heads, 1023, dtype=torch.float32)
        ops.encoder_attention(query, key, value, starts, 0.1, distance_terms=terms)
        table, factor = tensor(512, width), tensor(width)
        for tables in ((), (table,), (table, table, factor, factor), (None, None, factor)):
            ops.encoder_embedding(index, index, table, *tables)
        ops.segment_sum(tensor(64, width), starts, tensor(4, width, dtype=torch.float32))


def launch_states() -> None:
    """Launch Mamba2-130M's state operations, and heads with the largest states."""
    for heads, head_size, state_size in ((24, 64, 128), (8, 128, 256)):
        inner, places = heads * head_size, [tensor(9, dtype=torch.int32) for _ in range(3)]
        x, weight = tensor(9, inner), tensor(4, inner, dtype=torch.float32)
        states = tensor(8, 3, inner, dtype=torch.float32)
        ops.causal_conv1d(x, weight, weight[0], states, *places)
        ops.causal_conv1d(x, weight, None, states, *places, None, before=x, after=x)
        mixed = tensor(9, 1, state_size)
        numbers = dict.fromkeys(("a", "d", "dt_bias"), tensor(heads, dtype=torch.float32))
        ops.selective_scan(
            x.view(9, heads, head_size),
            tensor(9, heads),
            mixed,
            mixed,
            tensor(8, heads, state_size, head_size, dtype=torch.float32),
            *places,
            **numbers,
            dt_limit=(0.0, float("inf")),
        )
        ops.gated_rms_norm(x, x, tensor(inner), 1e-5, inner)
        ops.gated_rms_norm(x, x, tensor(inner), 1e-5, head_size, "sigmoid", True)
        ops.gated_product(x, x, "sigmoid")
        channel_states = tensor(8, 16, inner, dtype=torch.float32)
        a, d = tensor(16, inner, dtype=torch.float32), tensor(inner, dtype=torch.float32)
        b = tensor(9, 16)
        ops.channel_scan(x, x, b, b, x, channel_states, *places, a=a, d=d)
        biases = {"gate_bias": d, "decay_bias": d}
        ops.gated_recurrence(x, x, x, channel_states[:, 0], *places, rate=d, **biases)
    launch_delta_rules()


def launch_delta_rules() -> None:
    """Launch the delta rule of Qwen3-Next, and of Kimi Linear with a decay of each key."""
    places, value = [tensor(9, dtype=torch.int32) for _ in range(3)], tensor(9, 32, 128)
    key, states = tensor(9, 16, 128), tensor(8, 32, 128, 128, dtype=torch.float32)
    a, one = tensor(32, dtype=torch.float32), tensor(9, 32)
    ops.delta_rule(key, key, value, one, one, states, *places, a=a, dt_bias=a)
    bias = tensor(32, 128, dtype=torch.float32)
    ops.delta_rule(value, value, value, value, one, states, *places, a=a, dt_bias=bias)
