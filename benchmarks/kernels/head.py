"""The output head: every logit, then the largest; and the largest at once. Weights in bfloat16."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch

from kernels.case import Case, Shape, copies
from vllm_lite.kernels.dispatch import cpu_only_ops, ops
from vllm_lite.quantization.head import head_kernel
from vllm_lite.quantization.unquantized import plain_kernel

ROWS = (1, 8, 64, 256)


def cases(shape: Shape) -> Iterator[Case]:
    if cpu_only_ops() is None:
        return
    for rows in ROWS:
        yield _case("logits, then the largest", rows, shape, _in_two)
        yield _case("the largest logit at once", rows, shape, _at_once)


Call = Callable[[torch.Tensor], object]


def _in_two(weight: torch.Tensor) -> Call:
    product = plain_kernel(weight, None, torch.float32)
    return lambda x: ops().greedy_tokens(product(x))


def _at_once(weight: torch.Tensor) -> Call:
    head = head_kernel(plain_kernel(weight, None, torch.float32))
    assert head is not None
    return head.argmax


def _case(name: str, rows: int, shape: Shape, way: Callable[[torch.Tensor], Call]) -> Case:
    size = shape.vocab_size, shape.hidden_size
    weight_bytes = 2 * size[0] * size[1]

    def make() -> Sequence[Callable[[], object]]:
        x = torch.randn(rows, size[1]).bfloat16()
        weight = torch.randn(size).bfloat16()
        calls = [way(weight) for _ in range(copies(weight_bytes))]
        return [lambda call=call: call(x) for call in calls]  # type: ignore[misc]

    return Case(
        f"head, {name}",
        f"{rows} x {size[1]} -> {size[0]} bfloat16",
        make,
        weight_bytes + 2 * rows * size[1],
        2.0 * rows * size[0] * size[1],
        "bfloat16",
    )
