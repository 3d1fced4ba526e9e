"""Plain float32, bfloat16 or float16 weights, [output_size, input_size].

On a CPU weights are packed once, for our own kernel. On a GPU they stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from vllm_lite.kernels.dispatch import gpu_only_ops, is_deterministic, ops
from vllm_lite.kernels.gpu.backends import fixed_product
from vllm_lite.kernels.reference.linear import PackedLinear
from vllm_lite.kernels.reference.norm import InputNorm
from vllm_lite.kernels.reference.ops import GpuOps, Ops
from vllm_lite.quantization.method import EmbeddingTable, LinearKernel, LinearMethod, StoredTensor
from vllm_lite.quantization.storage import StoredWeight


class UnquantizedLinearMethod:
    """Weights in the model's own dtype; base of the methods whose vocabulary has such weights."""

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype

    def create_weights(self, input_size: int, output_size: int) -> dict[str, StoredTensor]:
        data = torch.empty(output_size, input_size, dtype=self._dtype)
        packing = _Packing(output_size, data.dtype) if _is_packed(data) else None
        return {"weight": StoredTensor(data, output_dim=0, input_dim=1, packing=packing)}

    def create_bias(self, output_size: int) -> Tensor:
        return torch.empty(output_size, dtype=self._dtype)

    def process_weights_after_loading(
        self,
        weights: Mapping[str, StoredTensor],
        bias: Tensor | None,
        out_dtype: torch.dtype | None = None,
    ) -> LinearKernel:
        stored = weights["weight"]
        if isinstance(stored.packing, _Packing) and stored.packing.packed is not None:
            return _packed_kernel(stored.packing.packed, bias, out_dtype)
        return plain_kernel(stored.data, bias, out_dtype)

    def for_vocabulary(self) -> LinearMethod:
        return UnquantizedLinearMethod(self._dtype)

    def make_table(self, weights: Mapping[str, StoredTensor]) -> EmbeddingTable:
        return PlainTable(weights["weight"].data)


class InFlightMethod(UnquantizedLinearMethod):
    """Plain weights in host memory until they are filled; base of the methods that round them."""

    def create_weights(self, input_size: int, output_size: int) -> dict[str, StoredTensor]:
        data = torch.empty(output_size, input_size, dtype=self._dtype, device="cpu")
        return {"weight": StoredTensor.on_host(data, 0, 1)}


class _Packing:
    """Packs rows straight from where they are read, such as a mapped file."""

    def __init__(self, num_outputs: int, dtype: torch.dtype) -> None:
        """The whole weight's."""
        self._num_outputs, self._dtype = num_outputs, dtype
        self.packed: PackedLinear | None = None

    @property
    def largest(self) -> float:
        return 0.0 if self.packed is None else self.packed.largest

    def put(self, first: int, rows: Tensor) -> None:
        rows = rows.to(self._dtype)
        rows = rows if rows.stride(1) == 1 else rows.contiguous()
        before = None if self.packed is None else self.packed.data
        self.packed = ops().pack_linear(rows, self._num_outputs, first, before)


class PlainTable:
    """Rows of a plain embedding.

    A tied head may hold a second copy: look-ups need plain rows, and GEMMs are twice as fast on
    packed ones.
    """

    def __init__(self, rows: Tensor) -> None:
        self._rows = rows
        self._ops = ops()

    def lookup(self, ids: Tensor, first_row: int | None = None) -> Tensor:
        return self._ops.embedding(ids, self._rows, first_row)

    def linear_kernel(self, out_dtype: torch.dtype, bias: Tensor | None = None) -> LinearKernel:
        return plain_kernel(self._rows, bias, out_dtype)


def plain_kernel(
    weight: Tensor, bias: Tensor | None, out_dtype: torch.dtype | None
) -> LinearKernel:
    """The fastest kernel by an unquantised weight [output_size, input_size]."""
    if _is_packed(weight):
        return _packed_kernel(ops().pack_linear(weight), bias, out_dtype)
    out_dtype = weight.dtype if out_dtype is None else out_dtype
    if is_deterministic():
        return FixedKernel(weight, bias, out_dtype, fixed_product())
    gpu = gpu_only_ops()
    if gpu is None:
        return TorchKernel(weight, bias, out_dtype)
    return GpuKernel(weight, bias, out_dtype, gpu)


def joined_kernel(
    parts: Sequence[Tensor], bias: Tensor | None, out_dtype: torch.dtype | None
) -> LinearKernel:
    """The same by the rows of several weights, one after another, which are packed where they are.

    They may lie in a file.
    """
    if not _is_packed(parts[0]):
        return plain_kernel(torch.cat(tuple(parts)), bias, out_dtype)
    packing = _Packing(sum(map(len, parts)), parts[0].dtype)
    first = 0
    for part in parts:
        packing.put(first, part)
        first += len(part)
    assert packing.packed is not None
    return _packed_kernel(packing.packed, bias, out_dtype)


def _is_packed(weight: Tensor) -> bool:
    return weight.device.type == "cpu" and weight.dtype is not torch.float16


def _packed_kernel(
    weight: PackedLinear, bias: Tensor | None, out_dtype: torch.dtype | None
) -> LinearKernel:
    wide = None if bias is None else bias.float()
    return PackedKernel(weight, wide, weight.dtype if out_dtype is None else out_dtype, ops())


@dataclass(frozen=True, slots=True)
class TorchKernel:
    """[T, input_size] -> [T, output_size] by an unpacked weight."""

    weight: Tensor
    bias: Tensor | None
    out_dtype: torch.dtype

    def __call__(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias).to(self.out_dtype)


@dataclass(frozen=True, slots=True)
class FixedKernel(TorchKernel):
    """The same by `fixed_linear`, whose order of sums does not depend on the batch."""

    product: Callable[[Tensor, Tensor, Tensor | None, torch.dtype], Tensor]

    def __call__(self, x: Tensor) -> Tensor:
        return self.product(x, self.weight, self.bias, self.out_dtype)


@dataclass(frozen=True, slots=True)
class GpuKernel(TorchKernel):
    """The same on a GPU, followed by an activation unless that is ""."""

    ops: GpuOps
    activation: str = ""

    def __call__(self, x: Tensor) -> Tensor:
        by = (self.weight, self.bias, self.out_dtype, self.activation)
        return self.ops.plain_linear(x, *by)

    def normed(self, x: Tensor, norm: InputNorm) -> tuple[Tensor, Tensor]:
        """See `normed_kernel`."""
        by = (self.weight, self.bias, self.out_dtype, self.activation)
        return self.ops.normed_plain_linear(x, norm, *by)

    def gated(self, activation: str) -> LinearKernel | None:
        """See `gated_kernel`."""
        is_rounded = self.out_dtype is self.weight.dtype
        return replace(self, activation=activation) if is_rounded else None


@dataclass(frozen=True, slots=True)
class PackedKernel:
    """[T, input_size] -> [T, output_size] by a packed weight; `bias` is float32."""

    weight: PackedLinear
    bias: Tensor | None
    out_dtype: torch.dtype
    ops: Ops

    @property
    def stored(self) -> tuple[StoredWeight, ...]:
        """For the log line at start."""
        name = str(self.weight.dtype).removeprefix("torch.")
        return (StoredWeight(name, self.weight.data.nbytes, self.weight.data),)

    def __call__(self, x: Tensor) -> Tensor:
        return self.ops.linear(x, self.weight, self.bias, self.out_dtype)

    def gated(self, activation: str) -> LinearKernel | None:
        """See `gated_kernel`."""
        if activation != "silu" or self.out_dtype is not self.weight.dtype:
            return None
        return lambda x: self.ops.gated_linear(x, self.weight, self.bias)


def gated_kernel(kernel: LinearKernel, activation: str) -> LinearKernel | None:
    """The kernel of gates and what they multiply, fused with act_and_mul; None if it cannot be."""
    gated = getattr(kernel, "gated", None)
    found: LinearKernel | None = None if gated is None else gated(activation)
    return found
