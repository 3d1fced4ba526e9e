"""Random weights, seeded and small, to try sizes and speed without a checkpoint."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from vllm_lite.layers.weights import WeightSlot
from vllm_lite.loader.weight_map import Target
from vllm_lite.loader.weight_rules import Part

# Small enough that no activation overflows, large enough that logits differ.
_RANGE = 0.02
# The exponent that a byte holds of a scale that is a power of two: 2**-7.
_EXPONENT = 120


@dataclass(frozen=True, slots=True)
class DummyTensor:
    """Uniform in [-0.02, 0.02] for matrices and biases; ones for norms and factors.

    Packed words are arbitrary, and unpacked as a checkpoint's; fp8 is in [-1, 1]. What a
    checkpoint may lack is lacking.

    Values depend on the seed and the name alone, in whatever order tensors are made.
    """

    name: str
    shape: tuple[int, ...]
    nbytes: int
    seed: int
    path: None = None

    @property
    def shown(self) -> str:
        return f"the tensor {self.name!r}"

    def fill(self, slot: WeightSlot, part: Part) -> None:
        tensor = slot.tensor
        if slot.is_optional:
            return
        if tensor.dim() == 1 and not self.name.endswith(".bias"):
            tensor.fill_(1 if tensor.is_floating_point() else 0)
            return
        generator = torch.Generator(tensor.device)
        # Parts of a fused layer share what has no outputs.
        name = self.name if slot.output_dim is not None else self.name.rpartition(".")[2]
        generator.manual_seed(zlib.crc32(name.encode(), self.seed & 0xFFFFFFFF))
        if tensor.is_floating_point() or slot.unpacking is None:
            slot.write(_filled(tensor, generator))
        else:
            shape = slot.unpacking.shape(slot.full_shape)
            stored = torch.empty(shape, dtype=slot.dtype_in_file, device=tensor.device)
            part.unpack(_filled(stored, generator, is_packed=shape != slot.full_shape), slot)


def _filled(tensor: Tensor, generator: torch.Generator, *, is_packed: bool = False) -> Tensor:
    """The tensor, with numbers that any format takes."""
    if tensor.dtype in (torch.float32, torch.bfloat16, torch.float16):
        tensor.uniform_(-_RANGE, _RANGE, generator=generator)
        # Scales are float16 in most files, and some are stored as such where they can be.
        return tensor.copy_(tensor.half())
    if tensor.is_floating_point():
        wide = torch.empty(tensor.shape, device=tensor.device)
        return tensor.copy_(wide.uniform_(-1.0, 1.0, generator=generator))
    if is_packed:
        limits = torch.iinfo(tensor.dtype)
        return tensor.random_(limits.min, limits.max + 1, generator=generator)
    if tensor.dtype is torch.int8:  # codes, of which each number of bits has -1 and 0
        return tensor.random_(-1, 1, generator=generator)
    return tensor.fill_(_EXPONENT if tensor.dtype is torch.uint8 else 0)


def make_dummies(targets: Mapping[str, Target], seed: int) -> list[DummyTensor]:
    return [
        DummyTensor(name, target.slot.full_shape, target.slot.tensor.nbytes, seed)
        for name, target in targets.items()
    ]
