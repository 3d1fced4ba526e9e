"""The operations of a GPU on tensors of this machine: Triton's, interpreted, and their meaning."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from vllm_lite.kernels import dispatch
from vllm_lite.kernels.reference import grouped_linear
from vllm_lite.kernels.reference.ops import GpuOps as reference

# On a GPU GGUF's rows become grouped weights.
GROUPED = {
    name: getattr(grouped_linear, name)
    for name in ("pack_quantized", "quantized_linear", "quantized_lookup")
}


def reference_ops() -> Any:
    """Every operation that layers ask of a GPU, in plain torch."""
    return type("Reference", (reference,), {n: staticmethod(f) for n, f in GROUPED.items()})


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
