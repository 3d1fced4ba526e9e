"""Activations between two linear layers, by their names in configurations."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vllm_lite.errors import CheckpointError
from vllm_lite.kernels.dispatch import ops
from vllm_lite.layers.weights import NamedSlot, WeightSlot
from vllm_lite.quantization.method import LinearKernel
from vllm_lite.quantization.scaled import of_rows

# ([T, 2I] or [T, I], a linear kernel of [T, I]) -> the kernel applied to the activated rows.
ActivatedProduct = Callable[[Tensor, LinearKernel], Tensor]

# transformers' names to those of the operations (kernels/reference/elementwise.py).
ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_python_tanh": "gelu_tanh",
    "gelu_accurate": "gelu_tanh",
    "quick_gelu": "gelu_quick",
    "relu": "relu",
    "relu2": "relu2",
}


def activation_name(hidden_act: str) -> str:
    """The operation's name of a config's `hidden_act`; raises CheckpointError."""
    name = ACTIVATIONS.get(hidden_act) if isinstance(hidden_act, str) else None
    if name is None:
        known = ", ".join(ACTIVATIONS)
        raise CheckpointError(f"hidden_act {hidden_act!r} is not supported; known: {known}")
    return name


def gated_product(name: str) -> ActivatedProduct:
    """Return down(act(gate) * up) for a kernel and rows that hold gate and up side by side."""
    activate = ops().act_and_mul

    def product(x: Tensor, kernel: LinearKernel) -> Tensor:
        takes_codes = of_rows(kernel)
        if takes_codes is None:
            return kernel(activate(x, name))
        rows = takes_codes.ops.act_and_mul_quantized(x, name, takes_codes.codes.dtype)
        return takes_codes.of_codes(*rows, x.dtype)

    return product


def plain_product(name: str) -> ActivatedProduct:
    """Apply the activation in place, then the kernel."""
    activate = ops().activation

    def product(x: Tensor, kernel: LinearKernel) -> Tensor:
        return kernel(activate(x, name, out=x))

    return product


class XIELU(nn.Module):
    """xIELU (arXiv:2411.13010), whose numbers are a layer's own: an ActivatedProduct."""

    def __init__(self) -> None:
        super().__init__()
        # Read once, on the host: kernels take them as floats.
        self._alphas = torch.empty(2, 1, dtype=torch.float32, device="cpu")
        self._bounds = torch.empty(2, 1, dtype=torch.float32, device="cpu")
        self._curve = (0.0, 0.0, 0.0, 0.0)
        self._xielu = ops().xielu

    def weight_slots(self) -> Iterator[NamedSlot]:
        for name, number in zip(("alpha_p", "alpha_n"), self._alphas, strict=True):
            yield NamedSlot("", name, WeightSlot.whole(number))
        for name, number in zip(("beta", "eps"), self._bounds, strict=True):
            yield NamedSlot("", name, WeightSlot.whole(number))

    def process_weights_after_loading(self) -> None:
        alpha_p, alpha_n = F.softplus(self._alphas).flatten().tolist()
        beta, eps = self._bounds.flatten().tolist()
        if not eps <= 0:
            raise CheckpointError(f"the eps of an xIELU is {eps}, not 0 or less")
        self._curve = (alpha_p, beta + alpha_n, beta, eps)

    def product(self, x: Tensor, kernel: LinearKernel) -> Tensor:
        """Apply the activation to x [T, N] in place, then the kernel."""
        return kernel(self._xielu(x, *self._curve, out=x))
