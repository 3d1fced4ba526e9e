"""Cases of check_kernels.py: each GPU operation once or more, on random tensors.

A case is a call that any implementation can run; it knows neither device nor reference.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from vllm_lite.kernels.gpu.triton.products import row_products
from vllm_lite.kernels.grouped_gguf import from_gguf
from vllm_lite.kernels.grouped_parts import GroupedPart, GroupedParts
from vllm_lite.kernels.grouped_weight import GroupedWeight, make_grouped
from vllm_lite.kernels.reference import grouped_linear as reference_grouped
from vllm_lite.kernels.reference.cache import SCALE_BYTES
from vllm_lite.kernels.reference.elementwise import ACTIVATIONS
from vllm_lite.kernels.reference.experts import ExpertStack, Routing
from vllm_lite.kernels.reference.norm import InputNorm
from vllm_lite.kernels.reference.ops import GpuOps as reference
from vllm_lite.quantization.layouts.numbers import values_of

# Two roundings to the type, and what a sum in float32 adds.
ROUNDING = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 1.6e-2}


@dataclass(frozen=True)
class Case:
    """`call(operations, arguments, dtype)` returns what is compared; dtype is that of results."""

    name: str
    reference: Any
    call: Callable[[Any, Sequence[Any], torch.dtype], Any]
    arguments: Sequence[Any]
    dtype: torch.dtype = torch.float32
    # Of numbers, relative to their own size and the root of their mean square.
    tolerance: float = 0.0
    # Of whole numbers, the share that may differ.
    may_differ: float = 0.0
    # Integers that differ may do so by this, 0: by anything.
    may_be_off: int = 0
    # Whether the reference computes in the case's own types, not in float64.
    is_rounded: bool = False
    # The CUDA kernels do it too.
    is_paged: bool = False


def layer_cases(dtype: torch.dtype, rows: int, size: int) -> Iterator[Case]:
    """Norms, activations and rotary embedding."""
    x, residual, weight = torch.randn(2 * rows + 1, size).to(dtype).split([rows, rows, 1])
    norm = [x, residual, weight[0]]

    def case(name: str, call: Any, arguments: Sequence[Any], spec: Any = reference) -> Case:
        return Case(f"{name} {dtype}", spec, call, arguments, dtype, ROUNDING[dtype])

    yield case("rms_norm", lambda o, t, _: o.rms_norm(t[0], t[2], 1e-5), norm)
    yield case(
        "fused_add_rms_norm", lambda o, t, _: o.fused_add_rms_norm(t[0], t[1], t[2], 1e-5), norm
    )
    gated = [torch.randn(rows, 2 * size).to(dtype)]
    for name in ACTIVATIONS:
        for kind in ("act_and_mul", "activation"):
            yield case(
                f"{kind} {name}",
                lambda o, t, _, kind=kind, name=name: getattr(o, kind)(t[0], name),
                gated,
            )
    x_and_gate = [x, residual]
    yield case("gated_product", lambda o, t, _: o.gated_product(*t, "silu"), x_and_gate)
    yield case("xielu", lambda o, t, _: o.xielu(t[0], 0.8, 0.9, 0.5, -1e-6), [x])
    by_head = [torch.randn(rows, 3, 80).to(dtype), torch.randn(3, 48, 64).to(dtype)]
    yield case("head_linear", lambda o, t, _: o.head_linear(t[0], o.pack_heads(t[1])), by_head)
    yield case("scaled_add", lambda o, t, _: o.scaled_add(t[0], t[1], 0.5, 3.0), [x, residual])
    yield case("match_rms", lambda o, t, _: o.match_rms(*t, 1e-5), [x, residual])
    yield case("keep_outliers", lambda o, t, _: o.keep_outliers(t[0], 0.7), [x])
    streams, factors = torch.randn(2, rows, 3, size).to(dtype), torch.randn(rows, 3, 3).to(dtype)
    mixed = [streams[0], factors, streams[1]]
    yield case("mix_rows", lambda o, t, _: o.mix_rows(*t, 0.5), mixed)
    centered = [x, residual, weight[0].float(), torch.randn(size)]
    yield case("layer_norm", lambda o, t, _: o.layer_norm(t[0], t[2], t[3], 1e-5), centered)
    yield case(
        "fused_add_layer_norm",
        lambda o, t, _: o.fused_add_layer_norm(t[0], t[1], t[2], t[3], 1e-5),
        centered,
    )
    heads = [torch.randn(rows, count, 128).to(dtype) for count in (9, 3)]
    positions, table = torch.randint(500, (rows,)), torch.randn(500, 96)

    def rotate(o: Any, t: Sequence[Any], is_neox: bool) -> list[Tensor]:
        o.rotary_embedding(*t, is_neox)
        return [t[1], t[2]]

    for is_neox in (True, False):
        yield case(
            f"rotary_embedding {'halves' if is_neox else 'pairs'}",
            lambda o, t, _, is_neox=is_neox: rotate(o, t, is_neox),
            [positions, *heads, table],
        )
    matrix, bias = torch.randn(70, size).to(dtype), torch.randn(70).to(dtype)
    product = [x, matrix, bias]
    yield case("fixed_linear", lambda o, t, d: o.fixed_linear(*t, d), product, reference)
    yield case("plain_linear", lambda o, t, d: o.plain_linear(*t, d), product, reference)

    for count in (1, row_products.MOST_ROWS):
        few = [torch.randn(count, 520).to(dtype), torch.randn(70, 520).to(dtype), bias]
        name = f"plain_linear of {count} rows"
        yield case(name, lambda o, t, d: o.plain_linear(*t, d), few, reference)
        rows_of_two = [*few, torch.randn(count, 520).to(dtype), torch.randn(520).to(dtype)]

        def normed(o: Any, t: Sequence[Any], dtype: torch.dtype) -> Any:
            norm = InputNorm(t[3], t[4], 1e-5)
            return o.normed_plain_linear(t[0], norm, t[1], t[2], dtype, "silu")

        # Rounds the norm, the product and its activation.
        wide = 3 * ROUNDING[dtype]
        yield replace(case(f"normed_{name}", normed, rows_of_two, reference), tolerance=wide)


def write_cases(dtype: torch.dtype, cached: torch.dtype) -> Iterator[Case]:
    """Keys and values into the cache, to the bit."""

    def write(o: Any, t: Sequence[Any], _: torch.dtype) -> list[Tensor]:
        o.reshape_and_cache(*t)
        return [t[2].float(), t[3].float()]

    rows = torch.randn(2, 40, 3, 96).to(dtype)
    caches = torch.zeros(2, 30, 3, 8, 96).to(cached)
    slots = torch.randperm(240)[:40]
    slots[3] = -1
    yield Case(
        f"reshape_and_cache {dtype} as {cached}",
        reference,
        write,
        [rows[0], rows[1], caches[0], caches[1], slots],
    )


def scaled_write_cases(dtype: torch.dtype) -> Iterator[Case]:
    """Keys and values into 8-bit caches, each row with a scale behind it."""

    def write(o: Any, t: Sequence[Any], _: torch.dtype) -> list[Tensor]:
        o.reshape_and_cache(*t)
        scales = [cache[..., 96:].contiguous().view(torch.float32) for cache in t[2:4]]
        return [*(places_of(cache[..., :96]) for cache in t[2:4]), *scales]

    rows = torch.randn(2, 40, 3, 96).to(dtype)
    for cached in (torch.int8, torch.float8_e4m3fn):
        caches = torch.zeros(2, 30, 3, 8, 96 + SCALE_BYTES).to(cached)
        yield Case(
            f"reshape_and_cache {dtype} as scaled {cached}",
            reference,
            write,
            [*rows, *caches, torch.randperm(240)[:40]],
            tolerance=ROUNDING[torch.float32],
            may_differ=0.01,  # a last bit decides between two codes
            may_be_off=1,
            is_rounded=True,
        )


def rotated_cases(dtype: torch.dtype) -> Iterator[Case]:
    """Heads normalised, rotated and written to the cache by one operation."""

    def write(o: Any, t: Sequence[Any], is_neox: bool) -> list[Tensor]:
        o.rotate_and_cache(*t[:3], is_neox, *t[3:6], t[6:] or None, 1e-6)
        return [t[0][:, :9], *t[3:5]]

    heads = torch.randn(40, 9 + 2 * 3, 128).to(dtype)
    angles = 6.3 * torch.rand(500, 48)
    positions, table = torch.randint(500, (40,)), torch.cat([angles.cos(), angles.sin()], 1)
    caches, weights = torch.zeros(2, 30, 3, 8, 128).to(dtype), torch.randn(2, 128).to(dtype)
    slots = torch.randperm(240)[:40]
    slots[3] = -1
    given = [heads, positions, table, *caches, slots]
    for is_neox in (True, False):
        for own in ([], [*weights]):
            yield Case(
                f"rotate_and_cache {dtype} {'halves' if is_neox else 'pairs'} "
                f"{'normalised' if own else 'as they are'}",
                reference,
                lambda o, t, _, is_neox=is_neox: write(o, t, is_neox),
                [*given, *own],
                dtype,
                # Heads are rounded twice as they are normalised, before sums that may cancel.
                (3 if own else 1) * ROUNDING[dtype],
            )


def logit_cases(rows: int, size: int) -> Iterator[Case]:
    """Token masks, sampling and log-probabilities."""
    logits = torch.randn(rows, size) * 4
    slots = torch.randperm(rows)
    bits = torch.randint(-(2**31), 2**31 - 1, (rows, -(-size // 32)), dtype=torch.int32)

    def changed(name: str) -> Callable[[Any, Sequence[Any], torch.dtype], Any]:
        def call(o: Any, t: Sequence[Any], _: torch.dtype) -> Any:
            getattr(o, name)(*t)
            return [t[0]]

        return call

    yield Case("apply_token_mask", reference, changed("apply_token_mask"), [logits, slots, bits])
    draws = reference
    yield Case("greedy_tokens", draws, lambda o, t, _: o.greedy_tokens(t[0]), [logits])
    words = [torch.randint(-(2**63), 2**63 - 1, (rows,)) for _ in range(2)]
    yield Case("uniforms", reference, lambda o, t, _: [o.uniforms(*t)], words, tolerance=0.0)
    how = [torch.rand(rows) + 0.5, torch.rand(rows) * 0.1, torch.randint(1, 50, (rows,))]
    how += [torch.rand(rows) * 0.5 + 0.5, torch.rand(rows, dtype=torch.float64)]
    yield Case(
        "sample_tokens",
        draws,
        lambda o, t, _: [o.sample_tokens(*t)[0]],
        [logits, *how],
        may_differ=0.05,  # where a chance falls between two tokens, the last bit decides
    )
    yield Case(
        "token_logprobs",
        draws,
        lambda o, t, _: o.token_logprobs(t[0], t[1], t[2], min(20, size)),
        [logits, slots, torch.randint(size, (rows,))],
        tolerance=1e-5,
    )


def places_of(codes: Tensor) -> Tensor:
    """The places of 8-bit numbers among all of their type, in order."""
    if not codes.is_floating_point():
        return codes.long()
    bits = codes.view(torch.uint8).long()
    return torch.where(bits < 128, bits, 128 - bits)


def narrow_cases(dtype: torch.dtype, rows: int, size: int) -> Iterator[Case]:
    """int8 and fp8: quantised rows and linear layers."""
    x, weight = torch.randn(rows, size).to(dtype), torch.randn(size).to(dtype)
    spec = reference

    def read(pair: tuple[Tensor, Tensor]) -> list[Tensor]:
        return [places_of(pair[0]), pair[1]]

    # The reference rounds at the same places; a last bit decides between two codes.
    near = {"may_differ": 0.01, "may_be_off": 1, "tolerance": ROUNDING[dtype], "is_rounded": True}
    for narrow in (torch.int8, torch.float8_e4m3fn, torch.float8_e5m2):
        for group in (0, 32):
            yield Case(
                f"quantize_rows {dtype} to {narrow} group={group}",
                spec,
                lambda o, t, _, narrow=narrow, group=group: read(
                    o.quantize_rows(t[0], narrow, group)
                ),
                [x],
                **near,
            )
        yield Case(
            f"quantize_by_scale {dtype} to {narrow}",
            spec,
            lambda o, t, _, narrow=narrow: [places_of(o.quantize_by_scale(t[0], t[1], narrow))],
            [x, torch.tensor([0.05])],
            **near,
        )
        for name in ("rms_norm_quantized", "fused_add_rms_norm_quantized"):
            arguments = [x, weight] if name.startswith("rms") else [x, x.clone(), weight]
            yield Case(
                f"{name} {dtype} to {narrow}",
                reference,
                lambda o, t, _, name=name, narrow=narrow: read(getattr(o, name)(*t, 1e-5, narrow)),
                arguments,
                dtype,
                **near,
            )
        for name in ("silu", "gelu"):
            yield Case(
                f"act_and_mul_quantized {name} {dtype} to {narrow}",
                reference,
                lambda o, t, _, name=name, narrow=narrow: read(
                    o.act_and_mul_quantized(t[0], name, narrow)
                ),
                [torch.randn(rows, 2 * size).to(dtype)],
                dtype,
                **near,
            )
        if narrow is not torch.float8_e5m2:
            yield from product_cases(dtype, narrow, rows, size)


def product_cases(dtype: torch.dtype, narrow: torch.dtype, rows: int, size: int) -> Iterator[Case]:
    """Linear layers by quantised weights with scales."""
    outputs = 48
    codes = (torch.randn(rows + outputs, size) * 20).clamp(-127, 127).round().to(narrow)
    bias, weight = torch.randn(outputs), (codes[rows:], torch.rand(outputs, 1) / 10)
    for count in dict.fromkeys((rows, 1, 3)):
        yield Case(
            f"scaled_linear {narrow} to {dtype}, {count} rows",
            reference,
            lambda o, t, dtype: [o.scaled_linear(*t, dtype)],
            [codes[:count], torch.rand(count, 1) / 10, *weight, bias],
            dtype,
            ROUNDING[dtype],
        )


def side_by_side(weights: Sequence[GroupedWeight]) -> GroupedParts:
    """Concatenate several weights of any types."""
    parts = tuple(GroupedPart(weight, 8) for weight in weights)
    return GroupedParts(parts, sum(w.num_outputs for w in weights), weights[0].num_inputs)


def block_floats() -> dict[str, GroupedWeight]:
    """NVFP4, MXFP4, and 8-bit floats in groups."""
    codes = torch.randint(16, (64, 256), dtype=torch.uint8)
    table = values_of("float4_e2m1")
    two_level = torch.rand(64, 16).add(0.5).to(torch.float8_e4m3fn)
    powers = torch.randint(120, 130, (64, 8), dtype=torch.uint8).view(torch.float8_e8m0fnu)
    numbers = torch.randn(64, 256).to(torch.float8_e4m3fn).view(torch.uint8)
    return {
        "NVFP4": make_grouped(codes, two_level, 4, table=table, super_scales=torch.rand(64, 1)),
        "MXFP4": make_grouped(codes, powers, 4, table=table),
        "e4m3 groups": make_grouped(
            numbers, torch.rand(64, 2), 8, table=values_of("float8_e4m3fn")
        ),
    }


def packed(operations: Any, weight: GroupedWeight) -> Any:
    """The weight as the operations want it; the reference takes it as it is stored."""
    pack = getattr(operations, "pack_grouped", None)
    return weight if pack is None else pack(weight)


def weight_cases(dtype: torch.dtype, rows: int) -> Iterator[Case]:
    """Grouped weights, and experts."""
    spec = reference_grouped
    codes, zeros = (torch.randint(16, (64, n), dtype=torch.uint8) for n in (256, 4))
    blocks = torch.randint(0, 256, (64, 16, 34), dtype=torch.uint8)  # Q8_0: a scale, 32 codes
    blocks[..., :2] = torch.rand(64, 16, 1).half().view(torch.uint8)
    weights = {
        "AWQ": make_grouped(codes, torch.rand(64, 4).half(), 4, zeros=zeros),
        "Q8_0": from_gguf(blocks.flatten(), 8, 64),
        "table of 4 bits": make_grouped(
            torch.randint(16, (64, 256), dtype=torch.uint8),
            torch.rand(64, 16).bfloat16(),
            4,
            table=torch.randn(16),
            super_scales=torch.rand(64, 1),
        ),
        "table of 3 bits": make_grouped(
            torch.randint(8, (64, 256), dtype=torch.uint8),
            torch.rand(64, 1),
            3,
            table=torch.randn(8),
        ),
        **block_floats(),
        "act-order of 2 bits": make_grouped(
            torch.randint(4, (64, 256), dtype=torch.uint8),
            torch.rand(64, 4).half(),
            2,
            zeros=torch.randint(4, (64, 4), dtype=torch.uint8),
            permutation=torch.randperm(256),
        ),
    }
    for name, weight in weights.items():
        for count in dict.fromkeys((rows, 1, 5)):
            x = torch.randn(count, weight.num_inputs).to(dtype)
            yield Case(
                f"grouped_linear {name} {dtype} {count}",
                spec,
                lambda o, t, _: [o.grouped_linear(t[0], packed(o, t[1]))],
                [x, weight],
                dtype,
                ROUNDING[dtype],
            )
        yield Case(
            f"gated_grouped_linear {name} {dtype}",
            spec,
            lambda o, t, _: [o.gated_grouped_linear(t[0], packed(o, t[1]), None, "silu")],
            [(torch.randn(2, weight.num_inputs) / 50).to(dtype), weight],
            dtype,
            3 * ROUNDING[dtype],
        )
        yield Case(
            f"expand_grouped {name} {dtype}",
            spec,
            lambda o, t, dtype: [o.expand_grouped(packed(o, t[0]), dtype)],
            [weight],
            dtype,
            ROUNDING[dtype],
        )
    parts = [weights["AWQ"], weights["Q8_0"]]
    x, ids = torch.randn(rows, 256).to(dtype), torch.randint(64, (rows,))
    yield Case(
        f"grouped_lookup {dtype}",
        spec,
        lambda o, t, dtype: [o.grouped_lookup(t[0], t[1], dtype)],
        [weights["table of 4 bits"], ids],
        dtype,
        ROUNDING[dtype],
    )
    parts[1] = from_gguf(blocks[:, :8].flatten(), 8, 64)
    yield Case(
        f"quantized_linear {dtype}",
        spec,
        lambda o, t, _: [o.quantized_linear(t[0], side_by_side(t[1:]))],
        [x, *parts],
        dtype,
        ROUNDING[dtype],
    )
    yield Case(
        f"quantized_lookup {dtype}",
        spec,
        lambda o, t, dtype: [o.quantized_lookup(side_by_side(t[1:]), t[0], dtype)],
        [ids, weights["Q8_0"]],
        dtype,
        ROUNDING[dtype],
    )
    experts = reference
    logits = torch.randn(rows, 12)
    yield Case(
        "route_topk",
        experts,
        lambda o, t, _: o.route_topk(t[0], Routing(top_k=3)),
        [logits],
        tolerance=1e-5,
    )
    shares, ids = experts.route_topk(logits, Routing(top_k=3))
    yield Case(
        "order_by_expert",
        experts,
        lambda o, t, _: [(order := o.order_by_expert(t[0], 12, 16)).pairs, order.expert_of_tile],
        [ids],
    )
    x = torch.randn(rows, 96).to(dtype)
    up, down = (torch.randn(12, 144, 96) / 10).to(dtype), (torch.randn(12, 96, 72) / 8).to(dtype)
    yield Case(
        f"experts_mlp {dtype}",
        experts,
        lambda o, t, _: [o.experts_mlp(*t[:3], *map(ExpertStack, t[3:]))],
        [x, ids, shares, up, down],
        dtype,
        # Rounded: both products, the activation, what it multiplies, and the sum.
        3 * ROUNDING[dtype],
    )
