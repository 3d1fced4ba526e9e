"""The activations that stand between two products, by name, in plain torch; part of `reference`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor


def _gelu_quick(x: Tensor) -> Tensor:
    return x * torch.sigmoid(1.702 * x)


def _relu2(x: Tensor) -> Tensor:
    return F.relu(x).square()


# Of float32. Their order is that of ActivationKind in csrc/cpu/kernel_table.h.
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,  # arXiv:1606.08415, by the error function
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "gelu_quick": _gelu_quick,
    "relu": F.relu,
    "relu2": _relu2,  # arXiv:2109.08668
}
