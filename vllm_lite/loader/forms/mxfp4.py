"""Floats of four bits with a scale for each 32 inputs (OCP Microscaling Formats, 2023), expanded.

gpt-oss stores them as two tensors, *_blocks [..., M, N / 32, 16] and *_scales [..., M, N / 32].
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from vllm_lite.layers.weights import WeightSlot
from vllm_lite.loader.stored import JoinedTensor, StoredTensor, damaged, part_of
from vllm_lite.loader.weight_rules import Part, WeightRules

_VALUES = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0], device="cpu")
# Of a scale's exponent.
_BIAS = 127


@dataclass(frozen=True, slots=True)
class Float4Tensor(JoinedTensor):
    """A matrix; its name is that of its blocks."""

    blocks: StoredTensor
    scales: StoredTensor

    @property
    def name(self) -> str:
        return self.blocks.name

    @property
    def parts(self) -> tuple[StoredTensor, StoredTensor]:
        return self.blocks, self.scales

    @property
    def shape(self) -> tuple[int, ...]:
        rows, *packed = self.blocks.shape
        return (rows, 2 * packed[0] * packed[1]) if len(packed) == 2 else self.blocks.shape

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
            scales = part_of(stored, name.removesuffix("_blocks") + "_scales", tensor)
            joined = Float4Tensor(tensor, scales)
            if scales.shape != tensor.shape[:-1]:
                raise damaged(joined, "blocks and a scale for each")
            yield joined
        elif name.endswith("_proj_scales"):
            part_of(stored, name.removesuffix("_scales") + "_blocks", tensor)
        else:
            yield tensor
