"""The kernel of a mixture of experts, packed from the kernels of its experts' linear layers.

LinearMethods store each expert's weights; here all experts become one operation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from vllm_lite.errors import CheckpointError, UsageError
from vllm_lite.kernels.dispatch import is_compiled, is_deterministic, ops
from vllm_lite.kernels.reference.experts import ExpertForm, ExpertStack
from vllm_lite.kernels.reference.ops import Ops
from vllm_lite.quantization.grouped import GroupedKernel
from vllm_lite.quantization.method import LinearKernel
from vllm_lite.quantization.quantized import QuantizedKernel
from vllm_lite.quantization.storage import StoredWeight
from vllm_lite.quantization.unquantized import PackedKernel, TorchKernel


@dataclass(frozen=True, slots=True)
class ExpertsKernel:
    """x [T, N], ids and weights [T, K] of experts -> [T, N] of out_dtype, by default x's type."""

    gate_up: Any
    down: Any
    form: ExpertForm
    ops: Ops
    # For the log line at start.
    stored: tuple[StoredWeight, ...]

    def __call__(
        self, x: Tensor, ids: Tensor, weights: Tensor, out_dtype: torch.dtype | None = None
    ) -> Tensor:
        return self.ops.experts_mlp(
            x,
            ids,
            weights,
            self.gate_up,
            self.down,
            self.form,
            out_dtype=out_dtype,
        )


def check_experts() -> None:
    """Raise UsageError if a mixture of experts cannot be computed deterministically."""
    if is_deterministic() and not is_compiled():
        raise UsageError(
            "--deterministic (VLLM_BATCH_INVARIANT) cannot be kept on a GPU by a mixture of "
            "experts, whose tiles follow from the number of rows; leave it out"
        )


def experts_kernel(
    gate_up: Sequence[LinearKernel], down: Sequence[LinearKernel], form: ExpertForm
) -> ExpertsKernel:
    """Pack each expert's two kernels; raises CheckpointError if their storage has no kernel."""
    stored = tuple(w for kernel in (*gate_up, *down) for w in getattr(kernel, "stored", ()))
    packed = [_pack(kernels) for kernels in (gate_up, down)]
    return ExpertsKernel(packed[0], packed[1], form, ops(), stored)


def _pack(kernels: Sequence[LinearKernel]) -> Any:
    if all(isinstance(kernel, TorchKernel) for kernel in kernels):
        weight = torch.stack([kernel.weight for kernel in kernels])  # type: ignore[attr-defined]
        biases = _biases(kernels)
        return ExpertStack(weight, None if biases is None else torch.stack(biases).float())
    kinds = (PackedKernel, GroupedKernel) + ((QuantizedKernel,) if is_compiled() else ())
    if any(getattr(kernel, "rounding", None) is not None for kernel in kernels) or not any(
        all(isinstance(kernel, kind) for kernel in kernels) for kind in kinds
    ):
        raise CheckpointError(
            "the experts of a mixture cannot be multiplied here as they are quantised; use "
            "--quantization dequantize for a quantised checkpoint, else leave --quantization out"
        )
    weights = [kernel.weight for kernel in kernels]  # type: ignore[attr-defined]
    return ops().pack_experts(weights, _biases(kernels))


def drop_bias(kernel: LinearKernel) -> None:
    """Set the bias of an expert's layer to zeros."""
    bias: Tensor | None = getattr(kernel, "bias", None)
    if bias is not None:
        bias.zero_()


def _biases(kernels: Sequence[LinearKernel]) -> list[Tensor] | None:
    biases = [kernel.bias for kernel in kernels]  # type: ignore[attr-defined]
    return None if biases[0] is None else biases
