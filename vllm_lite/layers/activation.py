"""Gated activations: act(gate) * up, where gate and up lie side by side, and the product by it."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from vllm_lite.errors import CheckpointError
from vllm_lite.kernels.dispatch import ops
from vllm_lite.quantization.method import LinearKernel
from vllm_lite.quantization.scaled import of_rows

# [T, 2I] and a product of [T, I] -> the product of what is activated.
GatedProduct = Callable[[Tensor, LinearKernel], Tensor]


def get_gated_product(name: str) -> GatedProduct:
    """The activation that a config's `hidden_act` names, and the product that follows it."""
    if name not in ("silu", "swish"):
        raise CheckpointError(f"hidden_act {name!r} is not supported; known: silu")
    activate = ops().act_and_mul

    def product(x: Tensor, kernel: LinearKernel) -> Tensor:
        takes_codes = of_rows(kernel)
        if takes_codes is None:
            return kernel(activate(x, "silu"))
        rows = takes_codes.ops.act_and_mul_quantized(x, "silu", takes_codes.codes.dtype)
        return takes_codes.of_codes(*rows, x.dtype)

    return product
