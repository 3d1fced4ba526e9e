"""Kernels and tables by weights that stay quantised, for all methods that keep them.

The selected operations pack the weights; a CPU's quantise activations to int8 in groups of 32.
Knows no checkpoint.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from vllm_lite.config.checkpoints.gguf_header import GGML_TYPES
from vllm_lite.kernels.dispatch import gpu_only_ops, ops
from vllm_lite.kernels.grouped_parts import GroupedParts
from vllm_lite.kernels.reference.ops import Ops
from vllm_lite.kernels.reference.quantized import QuantizedRows, QuantizedWeight
from vllm_lite.quantization.method import LinearKernel
from vllm_lite.quantization.storage import StoredWeight


@dataclass(frozen=True, slots=True)
class QuantizedKernel:
    """[T, input_size] -> [T, output_size]; `bias` is float32."""

    weight: QuantizedWeight
    bias: Tensor | None
    out_dtype: torch.dtype | None
    ops: Ops

    @property
    def stored(self) -> tuple[StoredWeight, ...]:
        """For the log line at start."""
        return tuple(
            StoredWeight(GGML_TYPES[part.ggml_type].name, part.nbytes, part.data)
            for part in self.weight.parts
        )

    def __call__(self, x: Tensor) -> Tensor:
        return self.ops.quantized_linear(x, self.weight, self.bias, self.out_dtype)

    def gated(self, activation: str) -> LinearKernel | None:
        """See `gated_kernel`; outputs of several storage types are not fused."""
        gpu = gpu_only_ops()
        weight: object = self.weight
        if gpu is None or not isinstance(weight, GroupedParts) or len(weight.parts) > 1:
            return None
        (part,) = weight.parts
        return lambda x: gpu.gated_grouped_linear(x, part.weight, self.bias, activation)


def quantized_kernel(
    rows: Sequence[QuantizedRows], bias: Tensor | None, out_dtype: torch.dtype | None
) -> QuantizedKernel:
    """Make the kernel of `rows`, concatenated; raises CheckpointError."""
    wide = None if bias is None else bias.float()
    return QuantizedKernel(ops().pack_quantized(rows), wide, out_dtype, ops())


class QuantizedTable:
    """Rows for look-ups and for a tied head."""

    def __init__(self, rows: QuantizedRows, dtype: torch.dtype) -> None:
        self._weight = ops().pack_quantized([rows])
        self._dtype = dtype
        self._lookup = ops().quantized_lookup

    def lookup(self, ids: Tensor, first_row: int | None = None) -> Tensor:
        return self._lookup(self._weight, ids, self._dtype, first_row)

    def linear_kernel(self, out_dtype: torch.dtype, bias: Tensor | None = None) -> LinearKernel:
        wide = None if bias is None else bias.float()
        return QuantizedKernel(self._weight, wide, out_dtype, ops())
