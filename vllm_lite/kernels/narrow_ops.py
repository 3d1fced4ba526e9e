"""What a GPU's implementation offers beside the operations of `reference`: products by numbers of
one byte, and by small integers in groups.

Shapes and meaning are stated in `reference_quantized`, the files named after it and
`reference_grouped`. An implementation has all of them or none.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from vllm_lite.kernels.grouped_weight import GroupedWeight


@runtime_checkable
class NarrowOps(Protocol):
    """Operations that CPUs have other forms of."""

    def quantize_rows(
        self, x: Tensor, dtype: torch.dtype, group_size: int = 0
    ) -> tuple[Tensor, Tensor]: ...

    def quantize_by_scale(self, x: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor: ...

    def rms_norm_quantized(
        self, x: Tensor, weight: Tensor, eps: float, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor]: ...

    def fused_add_rms_norm_quantized(
        self, x: Tensor, residual: Tensor, weight: Tensor, eps: float, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor]: ...

    def act_and_mul_quantized(
        self, x: Tensor, name: str, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor]: ...

    def scaled_linear(
        self,
        x: Tensor,
        x_scales: Tensor,
        weight: Tensor,
        weight_scales: Tensor,
        bias: Tensor | None,
        out_dtype: torch.dtype,
    ) -> Tensor: ...

    def grouped_linear(
        self,
        x: Tensor,
        weight: GroupedWeight,
        bias: Tensor | None = None,
        out_dtype: torch.dtype | None = None,
    ) -> Tensor: ...
