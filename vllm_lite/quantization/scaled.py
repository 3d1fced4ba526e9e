"""Online quantisation of weights and activations on a GPU: `int8`, `int8_per_channel` and `fp8`.

Each output of a weight and each token of the activations has a scale. The embedding and the
output head stay plain, for accuracy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from threading import Lock
from typing import Final

import torch
from torch import Tensor

from vllm_lite.kernels.reference.norm import InputNorm
from vllm_lite.kernels.reference.ops import GpuOps
from vllm_lite.kernels.reference.quantize import quantize_by_powers
from vllm_lite.quantization.method import LinearKernel, NormedKernel, StoredTensor
from vllm_lite.quantization.storage import StoredWeight
from vllm_lite.quantization.unquantized import InFlightMethod

# Types of weights by the name in --quantization.
SCALED_NUMBERS: Final = {
    **dict.fromkeys(("int8", "int8_per_channel"), torch.int8),
    **dict.fromkeys(("fp8", "fp8_per_channel", "ptpc_fp8"), torch.float8_e4m3fn),
}


@dataclass(frozen=True, slots=True)
class ScaledKernel:
    """[T, N] -> [T, M] by `scaled_linear` with quantised weights `codes` [M, N] and their scales.

    Activations are quantised to the same type: by `input_scale` [1] if given, else by scales
    of their own for each token, or for each `group_size` inputs of a token.
    """

    codes: Tensor
    scales: Tensor
    bias: Tensor | None
    out_dtype: torch.dtype | None
    ops: GpuOps
    input_scale: Tensor | None = None
    group_size: int = 0
    # Scales of groups are powers of two.
    has_powers: bool = False

    @property
    def stored(self) -> tuple[StoredWeight, ...]:
        """For the log line at start."""
        name = str(self.codes.dtype).removeprefix("torch.")
        return (StoredWeight(name, self.codes.nbytes + self.scales.nbytes, self.codes),)

    def __call__(self, x: Tensor) -> Tensor:
        if self.has_powers:
            codes, scales = quantize_by_powers(x, self.codes.dtype, self.group_size)
        elif self.input_scale is None:
            codes, scales = self.ops.quantize_rows(x, self.codes.dtype, self.group_size)
        else:
            codes = self.ops.quantize_by_scale(x, self.input_scale, self.codes.dtype)
            scales = self.input_scale.view(1, 1)
        return self.of_codes(codes, scales, x.dtype)

    @property
    def normed(self) -> NormedKernel | None:
        """See `normed_kernel`: the norm writes its rows quantised."""
        return None if of_rows(self) is None else self._of_normed

    def _of_normed(self, x: Tensor, norm: InputNorm) -> tuple[Tensor, Tensor]:
        number, residual = self.codes.dtype, norm.residual
        if residual is None:
            rows = self.ops.rms_norm_quantized(x, norm.weight, norm.eps, number)
            return self.of_codes(*rows, x.dtype), x
        rows = self.ops.fused_add_rms_norm_quantized(x, residual, norm.weight, norm.eps, number)
        return self.of_codes(*rows, x.dtype), residual

    def of_codes(self, codes: Tensor, scales: Tensor, dtype: torch.dtype) -> Tensor:
        """Multiply quantised activations; dtype is theirs before quantisation."""
        out_dtype = dtype if self.out_dtype is None else self.out_dtype
        by = (self.codes, self.scales, self.bias)
        return self.ops.scaled_linear(codes, scales, *by, out_dtype)


def of_rows(kernel: LinearKernel) -> ScaledKernel | None:
    """The kernel if it takes quantised rows with a scale each, else None."""
    if not isinstance(kernel, ScaledKernel) or kernel.input_scale is not None:
        return None
    return None if kernel.group_size or kernel.has_powers else kernel


class ScaledLinearMethod(InFlightMethod):
    """Plain weights until they are filled, then one byte a value."""

    def __init__(self, number: torch.dtype, dtype: torch.dtype, ops: GpuOps) -> None:
        """`number` is int8 or float8_e4m3fn."""
        self._number = number
        super().__init__(dtype)
        self._ops = ops
        # Several threads finish layers, and a kernel's first launch compiles it.
        self._one_at_a_time = Lock()

    def process_weights_after_loading(
        self,
        weights: Mapping[str, StoredTensor],
        bias: Tensor | None,
        out_dtype: torch.dtype | None = None,
    ) -> LinearKernel:
        weight = weights["weight"].placed()
        with self._one_at_a_time:
            codes, scales = self._ops.quantize_rows(weight, self._number)
        return ScaledKernel(codes, scales, bias, out_dtype, self._ops)
