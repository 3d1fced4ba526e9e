"""Floats of four bits with a scale for each 32 inputs (OCP Microscaling Formats, 2023), expanded.

gpt-oss stores them as two tensors, *_blocks [..., M, N / 32, 16] and *_scales [..., M, N / 32].
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from vllm_lite.errors import CheckpointError
from vllm_lite.layers.weights import WeightSlot
from vllm_lite.loader.stored import StoredTensor
from vllm_lite.loader.weight_rules import Part, WeightRules

_VALUES = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0], device="cpu")
# Of a scale's exponent.
_BIAS = 127


@dataclass(frozen=True, slots=True)
class Float4Tensor:
    """A matrix; its name is that of its blocks."""

    blocks: StoredTensor
    scales: StoredTensor

    @property
    def name(self) -> str:
        return self.blocks.name

    @property
    def path(self) -> Path:
        return self.blocks.path

    @property
    def shape(self) -> tuple[int, ...]:
        rows, *packed = self.blocks.shape
        return (rows, 2 * packed[0] * packed[1]) if len(packed) == 2 else self.blocks.shape

    @property
    def nbytes(self) -> int:
        return self.blocks.nbytes + self.scales.nbytes

    def slices(self, rules: WeightRules) -> Iterator[Float4Tensor]:
        """The matrices of a stack."""
        shape = self.scales.shape[1:]
        for part in self.blocks.slices(rules):
            yield Float4Tensor(part, replace(self.scales, shape=shape, place=part.place))

    def fill(self, slot: WeightSlot, part: Part) -> None:
        expanded = expand(self.blocks.read(), self.scales.read())
        slot.write(part.values(expanded[part.region(slot)]))


def expand(blocks: Tensor, scales: Tensor) -> Tensor:
    """[M, G, 16] and [M, G] uint8 -> [M, 32 G] float32; the low half of a byte comes first."""
    codes = torch.stack((blocks & 15, blocks >> 4), -1).flatten(-2).int()
    values = torch.where(codes < 8, _VALUES[codes & 7], -_VALUES[codes & 7])
    return torch.ldexp(values, (scales.int() - _BIAS).unsqueeze(-1)).flatten(-2)


def join_float4(
    tensors: Iterable[StoredTensor],
) -> Iterator[StoredTensor | Float4Tensor]:
    """The tensors, blocks with their scales as one; raises CheckpointError where a half lacks."""
    stored = {tensor.name: tensor for tensor in tensors}
    for name, tensor in stored.items():
        if name.endswith("_blocks"):
            scales = stored.get(name.removesuffix("_blocks") + "_scales")
            if scales is None or scales.shape != tensor.shape[:-1]:
                raise CheckpointError(f"{tensor.path}: {name!r} has no scales that fit it")
            yield Float4Tensor(tensor, scales)
        elif name.removesuffix("_scales") + "_blocks" not in stored:
            yield tensor
