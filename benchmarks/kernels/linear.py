"""The model's linear layers by plain weights, float32 and bfloat16, with torch's beside them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
import torch.nn.functional as F

from kernels.case import Case, Shape, copies
from vllm_lite.kernels.dispatch import ops

ROWS = (1, 8, 64, 1024)


def layer_sizes(shape: Shape) -> dict[str, tuple[int, int]]:
    """Inputs and outputs of a decoder's linear layers, by name."""
    heads = (shape.num_heads + 2 * shape.num_kv_heads) * shape.head_size
    return {
        "qkv": (shape.hidden_size, heads),
        "attention output": (shape.num_heads * shape.head_size, shape.hidden_size),
        "gate and up": (shape.hidden_size, 2 * shape.intermediate_size),
        "down": (shape.intermediate_size, shape.hidden_size),
        "logits": (shape.hidden_size, shape.vocab_size),
    }


def cases(shape: Shape) -> Iterator[Case]:
    for dtype in (torch.bfloat16, torch.float32):
        for name, (num_inputs, num_outputs) in layer_sizes(shape).items():
            for rows in ROWS:
                if name == "logits" and rows > 64:
                    continue  # nobody asks for so many
                yield _case(name, rows, num_inputs, num_outputs, dtype)


def _case(name: str, rows: int, num_inputs: int, num_outputs: int, dtype: torch.dtype) -> Case:
    weight_bytes = num_inputs * num_outputs * dtype.itemsize
    activation_bytes = rows * (num_inputs + num_outputs) * dtype.itemsize
    number = "bfloat16" if dtype is torch.bfloat16 else "float32"

    def make() -> Sequence[Callable[[], object]]:
        x = torch.randn(rows, num_inputs, dtype=dtype)
        weight = torch.randn(num_outputs, num_inputs, dtype=dtype)
        packed = [ops().pack_linear(weight) for _ in range(copies(weight_bytes))]
        linear = ops().linear
        return [lambda w=w: linear(x, w) for w in packed]  # type: ignore[misc]

    def make_rival() -> Sequence[Callable[[], object]]:
        x = torch.randn(rows, num_inputs, dtype=dtype)
        weight = torch.randn(num_outputs, num_inputs, dtype=dtype)
        return _rival_calls(x, weight, copies(weight_bytes))

    size = f"{rows} x {num_inputs} -> {num_outputs} {number}"
    operations = 2.0 * rows * num_inputs * num_outputs
    moved = weight_bytes + activation_bytes
    return Case(f"product, {name}", size, make, moved, operations, number, make_rival=make_rival)


def _rival_calls(x: torch.Tensor, weight: torch.Tensor, count: int) -> list[Callable[[], object]]:
    """By oneDNN, which packs bfloat16 weights for the best instructions of the processor."""
    # Without AVX-512 oneDNN packs no bfloat16 weights.
    packs = torch._C._has_mkldnn and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    if weight.dtype is not torch.bfloat16 or not packs:
        weights = [weight.clone() for _ in range(count)]
        return [lambda w=w: F.linear(x, w) for w in weights]  # type: ignore[misc]
    packed = [torch.ops.mkldnn._reorder_linear_weight(weight, None) for _ in range(count)]
    linear = torch.ops.mkldnn._linear_pointwise.default
    return [lambda w=w: linear(x, w, None, "none", [], "") for w in packed]  # type: ignore[misc]
