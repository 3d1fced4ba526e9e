"""The operations of a GPU on tensors of this machine: Triton's, interpreted, and their meaning."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from vllm_lite.kernels import dispatch
from vllm_lite.kernels.reference import grouped_linear as reference_grouped
from vllm_lite.kernels.reference import ops as reference
from vllm_lite.kernels.reference import quantize as reference_quantized
from vllm_lite.kernels.reference import quantized_activation as reference_quantized_gated
from vllm_lite.kernels.reference import quantized_norm as reference_quantized_norms

NARROW_FUSED = (reference_quantized_gated, reference_quantized_norms)


def reference_ops() -> Any:
    """Every operation that layers ask of a GPU, in plain torch."""
    names: dict[str, Any] = {}
    modules: tuple[ModuleType, ...] = (reference, reference_quantized)
    for module in (*modules, *NARROW_FUSED, reference_grouped):
        names |= {n: f for n, f in vars(module).items() if callable(f) and n[0].islower()}
    return SimpleNamespace(**names)


def triton_ops() -> Any:
    """The GPU's own, as the interpreter runs them."""
    pytest.importorskip("triton")
    from vllm_lite.kernels.gpu.triton import ops

    return ops


@contextmanager
def selected(operations: Any) -> Iterator[None]:
    """Models that are loaded inside use `operations`."""
    before = dispatch._selected
    dispatch._selected = operations
    try:
        yield
    finally:
        dispatch._selected = before
