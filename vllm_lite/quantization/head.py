"""What an output head asks of its product beyond the product, where it can be had.

Knows no layer: the weights that both kinds of repacked kernels hold, and the operations on them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from vllm_lite.kernels.dispatch import head_ops
from vllm_lite.quantization.method import LinearKernel
from vllm_lite.quantization.quantized import QuantizedKernel
from vllm_lite.quantization.unquantized import PackedKernel


@dataclass(frozen=True, slots=True)
class HeadKernel:
    """A product by weights [M, N].

    `into(x, out)` writes the product of x [R, N] to `out` [R, M] float32 and returns it.
    `argmax(x)` is the number and the value of each row's first largest output, both [R]; where
    such a value is not finite, the number is some one below M.
    """

    into: Callable[[Tensor, Tensor], Tensor]
    argmax: Callable[[Tensor], tuple[Tensor, Tensor]]


def head_kernel(kernel: LinearKernel) -> HeadKernel | None:
    """What `kernel` does for a head, if the operations on its weights can."""
    head, wide = head_ops(), torch.float32
    if head is not None and isinstance(kernel, PackedKernel):
        packed, bias = kernel.weight, kernel.bias
        return HeadKernel(
            lambda x, out: head.linear(x, packed, bias, wide, out),
            lambda x: head.linear_argmax(x, packed, bias),
        )
    if head is not None and isinstance(kernel, QuantizedKernel):
        rows, bias = kernel.weight, kernel.bias
        return HeadKernel(
            lambda x, out: head.quantized_linear(x, rows, bias, wide, out),
            lambda x: head.quantized_linear_argmax(x, rows, bias),
        )
    return None
