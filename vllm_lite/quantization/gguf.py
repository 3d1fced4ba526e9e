"""Weights of a GGUF file, kept quantised in memory.

Parts of a fused layer may have different types. Tensors that a file stores as floats are plain
weights here, and so are layers whose values come from elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from vllm_lite.kernels.reference.quantized import QuantizedRows
from vllm_lite.quantization.method import EmbeddingTable, LinearKernel, LinearMethod, StoredTensor
from vllm_lite.quantization.quantized import QuantizedTable, quantized_kernel
from vllm_lite.quantization.storage import StoredWeight
from vllm_lite.quantization.unquantized import PlainTable, UnquantizedLinearMethod, joined_kernel


class GGUFLinearMethod(UnquantizedLinearMethod):
    """Keeps quantised rows; plain ones have the model's dtype."""

    def create_weights(self, input_size: int, output_size: int) -> dict[str, StoredTensor]:
        # Pages of `data` that are never written take no memory.
        data = torch.empty(output_size, input_size, dtype=self._dtype, device="cpu")
        return {"weight": StoredTensor.on_host(data, 0, 1, rows={})}

    def process_weights_after_loading(
        self,
        weights: Mapping[str, StoredTensor],
        bias: Tensor | None,
        out_dtype: torch.dtype | None = None,
    ) -> LinearKernel:
        parts = _parts(weights["weight"])
        quantized = [part for part in parts if isinstance(part, QuantizedRows)]
        plain = [part for part in parts if isinstance(part, Tensor)]
        if not plain:
            return quantized_kernel(quantized, bias, out_dtype)
        if not quantized:
            return joined_kernel(plain, bias, out_dtype)
        kernels: list[LinearKernel] = []
        first = 0
        for part in parts:
            size = part.num_outputs if isinstance(part, QuantizedRows) else part.shape[0]
            of_part = None if bias is None else bias[first : first + size]
            first += size
            if isinstance(part, QuantizedRows):
                kernels.append(quantized_kernel([part], of_part, out_dtype))
            else:
                kernels.append(joined_kernel([part], of_part, out_dtype))
        return SideBySide(tuple(kernels))

    def for_vocabulary(self) -> LinearMethod:
        return self

    def make_table(self, weights: Mapping[str, StoredTensor]) -> EmbeddingTable:
        stored = weights["weight"]
        (rows,) = _parts(stored)
        if isinstance(rows, QuantizedRows):
            return QuantizedTable(rows, self._dtype)
        may_be_in_file = stored.rows and rows.device.type == "cpu"
        return PlainTable(rows.clone() if may_be_in_file else rows)


@dataclass(frozen=True, slots=True)
class SideBySide:
    """Several kernels of one input, with their outputs concatenated."""

    kernels: tuple[LinearKernel, ...]

    @property
    def stored(self) -> tuple[StoredWeight, ...]:
        """For the log line at start."""
        return tuple(weight for kernel in self.kernels for weight in getattr(kernel, "stored", ()))

    def __call__(self, x: Tensor) -> Tensor:
        return torch.cat([kernel(x) for kernel in self.kernels], 1)


def _parts(stored: StoredTensor) -> list[QuantizedRows | Tensor]:
    """Split outputs in order into quantised rows and rows of `data`."""
    data, rows = stored.data, stored.rows or {}
    parts: list[QuantizedRows | Tensor] = []
    first = 0
    for start in sorted(rows):
        if start > first:
            parts.append(stored.on_device(data[first:start]))
        part = rows[start]
        part = replace(part, blocks=stored.on_device(part.blocks))
        parts.append(part if part.plain is None else part.plain)
        first = start + part.num_outputs
    if first < data.shape[0]:
        parts.append(stored.on_device(data[first:]))
    return parts
