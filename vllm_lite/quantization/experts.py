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
from vllm_lite.kernels.grouped_parts import GroupedParts
from vllm_lite.kernels.reference.experts import ExpertForm, ExpertStack
from vllm_lite.kernels.reference.ops import Ops
from vllm_lite.quantization.gguf import SideBySide
from vllm_lite.quantization.grouped import GroupedKernel
from vllm_lite.quantization.method import LinearKernel
from vllm_lite.quantization.padded_experts import UnpackedKernel, widened
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


@dataclass(frozen=True, slots=True)
class WidenedKernel(ExpertsKernel):
    """The same of layers with more inputs, which are zeros, and with more outputs, unused."""

    def __call__(
        self, x: Tensor, ids: Tensor, weights: Tensor, out_dtype: torch.dtype | None = None
    ) -> Tensor:
        size = x.shape[1]
        wide = torch.nn.functional.pad(x, (0, self.gate_up.num_inputs - size))
        return ExpertsKernel.__call__(self, wide, ids, weights, out_dtype)[:, :size].contiguous()


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
    made = ExpertsKernel
    first = [kernel for kernel in gate_up if isinstance(kernel, UnpackedKernel)]
    second = [kernel for kernel in down if isinstance(kernel, UnpackedKernel)]
    if len(first) == len(gate_up) and len(second) == len(down):
        made, (gate_up, down) = WidenedKernel, widened(first, second)
    stored = tuple(w for kernel in (*gate_up, *down) for w in getattr(kernel, "stored", ()))
    try:
        packed = [_pack(kernels) for kernels in (gate_up, down)]
    except ValueError:
        raise _unpackable(gate_up, down) from None
    if len({getattr(stack, "storage", None) for stack in packed}) > 1:
        raise _unpackable(gate_up, down)
    return made(packed[0], packed[1], form, ops(), stored)


def _pack(kernels: Sequence[LinearKernel]) -> Any:
    if all(isinstance(kernel, TorchKernel) for kernel in kernels):
        weight = torch.stack([kernel.weight for kernel in kernels])  # type: ignore[attr-defined]
        biases = _biases(kernels)
        return ExpertStack(weight, None if biases is None else torch.stack(biases).float())
    weights = [_weights(kernel) for kernel in kernels]
    if not all(weights):
        raise ValueError("experts of no storage that is packed")
    packed = [parts[0] if len(parts) == 1 else parts for parts in weights]
    roundings = [getattr(_parts(kernel)[0], "rounding", None) for kernel in kernels]
    return ops().pack_experts(packed, _biases(kernels), roundings)


def _unpackable(gate_up: Sequence[LinearKernel], down: Sequence[LinearKernel]) -> CheckpointError:
    """The error that names the first two layers whose storage is unlike, or else the one of all."""
    layers: dict[str, str] = {}
    for part, kernels in (("first", gate_up), ("second", down)):
        for number, kernel in enumerate(kernels):
            layers.setdefault(_scheme(kernel), f"the {part} layer of experts.{number}")
    shown = [f"{layer} ({scheme})" for scheme, layer in list(layers.items())[:2]]
    return CheckpointError(
        f"the experts of a mixture cannot be multiplied here as stored: {' and '.join(shown)}; "
        "use --quantization dequantize for a quantised checkpoint, else leave --quantization out"
    )


def _scheme(kernel: LinearKernel) -> str:
    found = {
        f"{weight.format}{f' of {size}' if (size := getattr(part, 'group_size', 0)) else ''}"
        for each in _parts(kernel)
        for weight in getattr(each, "stored", ())
        for part in (getattr(each, "weight", None),)
    }
    plain = "plain" if isinstance(kernel, TorchKernel) else "padded groups"
    inputs = {
        f", inputs {str(rounding.number).removeprefix('torch.')}"
        for each in _parts(kernel)
        if (rounding := getattr(each, "rounding", None)) is not None
    }
    return (" beside ".join(sorted(found)) or plain) + "".join(sorted(inputs))


def _weights(kernel: LinearKernel) -> tuple[Any, ...]:
    """The weights of a kernel's parts as `pack_experts` takes them; none: it cannot."""
    parts = _parts(kernel)
    if all(isinstance(part, GroupedKernel) for part in parts):
        is_rounded = any(part.rounding is not None for part in parts)
        return () if is_rounded and len(parts) > 1 else tuple(part.weight for part in parts)
    if len(parts) > 1 or not isinstance(kernel, PackedKernel | QuantizedKernel):
        return ()
    weight: object = kernel.weight
    if isinstance(weight, GroupedParts):  # a GPU's
        return tuple(part.weight for part in weight.parts)
    return (weight,) if isinstance(kernel, PackedKernel) or is_compiled() else ()


def drop_bias(kernel: LinearKernel) -> None:
    """Set the bias of an expert's layer to zeros."""
    for part in _parts(kernel):
        if (bias := getattr(part, "bias", None)) is not None:
            bias.zero_()


def _parts(kernel: LinearKernel) -> tuple[Any, ...]:
    return kernel.kernels if isinstance(kernel, SideBySide) else (kernel,)


def _biases(kernels: Sequence[LinearKernel]) -> list[Tensor] | None:
    biases = [[part.bias for part in _parts(kernel)] for kernel in kernels]
    return None if biases[0][0] is None else [torch.cat(parts) for parts in biases]
