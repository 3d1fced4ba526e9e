"""What the compiled kernels offer an output head beside the operations of `reference`: products of
which only the largest output is kept, and products into memory that is there already.

The specification of the first is `reference.greedy_tokens` of the product in float32, bit by bit.
An implementation has all of them or none.
"""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from vllm_lite.kernels.reference.ops import PackedLinear


@runtime_checkable
class HeadOps(Protocol):
    """Operations on x [R, N] and a weight [M, N] that pack_linear or pack_quantized made.

    The first two return tokens [R] int64 and the largest outputs [R] float32; the others write
    `out` [R, M], whose rows are dense.
    """

    def linear_argmax(
        self, x: Tensor, weight: PackedLinear, bias: Tensor | None = None
    ) -> tuple[Tensor, Tensor]: ...

    def quantized_linear_argmax(
        self, x: Tensor, weight: Any, bias: Tensor | None = None
    ) -> tuple[Tensor, Tensor]: ...

    def linear(
        self,
        x: Tensor,
        weight: PackedLinear,
        bias: Tensor | None = None,
        out_dtype: torch.dtype | None = None,
        out: Tensor | None = None,
    ) -> Tensor: ...

    def quantized_linear(
        self,
        x: Tensor,
        weight: Any,
        bias: Tensor | None = None,
        out_dtype: torch.dtype | None = None,
        out: Tensor | None = None,
    ) -> Tensor: ...
