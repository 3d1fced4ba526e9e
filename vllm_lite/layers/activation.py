"""Gated activations: act(gate) * up, where gate and up lie side by side, and the product by it."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from vllm_lite.errors import CheckpointError
from vllm_lite.kernels.dispatch import narrow_ops, ops
from vllm_lite.quantization.method import LinearKernel
from vllm_lite.quantization.scaled import ScaledKernel

# [T, 2I] and a product of [T, I] -> the product of what is activated.
GatedProduct = Callable[[Tensor, LinearKernel], Tensor]


def get_gated_product(name: str) -> GatedProduct:
    """The activation that a config's `hidden_act` names, and the product that follows it."""
    if name not in ("silu", "swish"):
        raise CheckpointError(f"hidden_act {name!r} is not supported; known: silu")
    activate, narrow = ops().silu_and_mul, narrow_ops()
    if narrow is None:
        return lambda x, kernel: kernel(activate(x))
    activate_to_codes = narrow.silu_and_mul_quantized

    def product(x: Tensor, kernel: LinearKernel) -> Tensor:
        if isinstance(kernel, ScaledKernel) and kernel.row_codes is not None:
            codes, scales = activate_to_codes(x, kernel.row_codes)
            return kernel.of_codes(codes, scales, x.dtype)
        return kernel(activate(x))

    return product
