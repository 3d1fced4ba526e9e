"""Gated activations: act(gate) * up, where gate and up lie side by side."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from vllm_lite.errors import CheckpointError
from vllm_lite.kernels.dispatch import ops


def get_gated_activation(name: str) -> Callable[[Tensor], Tensor]:
    """The function [T, 2I] -> [T, I] that a config's `hidden_act` names."""
    if name in ("silu", "swish"):
        return ops().silu_and_mul
    raise CheckpointError(f"hidden_act {name!r} is not supported; known: silu")
