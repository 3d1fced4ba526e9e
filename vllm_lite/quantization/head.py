"""Kernels of an output head: results in given memory, and the largest output alone.

Only the compiled CPU kernels have them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from vllm_lite.kernels.dispatch import cpu_only_ops
from vllm_lite.quantization.grouped import GroupedKernel
from vllm_lite.quantization.method import LinearKernel
from vllm_lite.quantization.quantized import QuantizedKernel
from vllm_lite.quantization.unquantized import PackedKernel


@dataclass(frozen=True, slots=True)
class HeadKernel:
    """Operations by a head's weights [M, N].

    `into(x, out)` writes the logits of x [R, N] to `out` [R, M] float32 and returns it.
    `argmax(x)` returns index and value of each row's first largest output, both [R]; if
    a value is not finite, its index is arbitrary, below M.
    """

    into: Callable[[Tensor, Tensor], Tensor]
    argmax: Callable[[Tensor], tuple[Tensor, Tensor]]


def head_kernel(kernel: LinearKernel) -> HeadKernel | None:
    """The head's kernel for the weights of `kernel`, or None if there is none."""
    ops, wide = cpu_only_ops(), torch.float32
    if ops is not None and isinstance(kernel, PackedKernel):
        packed, bias = kernel.weight, kernel.bias
        return HeadKernel(
            lambda x, out: ops.linear(x, packed, bias, wide, out),
            lambda x: ops.linear_argmax(x, packed, bias),
        )
    if ops is not None and isinstance(kernel, QuantizedKernel):
        rows, bias = kernel.weight, kernel.bias
        return HeadKernel(
            lambda x, out: ops.quantized_linear(x, rows, bias, wide, out),
            lambda x: ops.quantized_linear_argmax(x, rows, bias),
        )
    if ops is not None and isinstance(kernel, GroupedKernel):
        return HeadKernel(kernel, lambda x: kernel.ops.greedy_tokens(kernel(x)))
    return None
