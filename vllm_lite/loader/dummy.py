"""Made-up weights: seeded and small.

For trying out sizes and speed without a checkpoint; the text that comes out is noise.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from vllm_lite.layers.weights import WeightSlot
from vllm_lite.loader.weight_map import Target

# Small enough that no activation overflows, large enough that logits differ.
_RANGE = 0.02


@dataclass(frozen=True, slots=True)
class DummyTensor:
    """Uniform in [-0.02, 0.02] for matrices and biases; ones for norms and factors.

    Values depend on the seed and the name alone, in whatever order tensors are made.
    """

    name: str
    shape: tuple[int, ...]
    nbytes: int
    seed: int

    def fill(self, slot: WeightSlot) -> None:
        if slot.tensor.dim() == 1 and not self.name.endswith(".bias"):
            slot.tensor.fill_(1.0)
            return
        generator = torch.Generator(slot.tensor.device)
        generator.manual_seed(zlib.crc32(self.name.encode(), self.seed & 0xFFFFFFFF))
        slot.tensor.uniform_(-_RANGE, _RANGE, generator=generator)


def make_dummies(targets: Mapping[str, Target], seed: int) -> list[DummyTensor]:
    """One for every target."""
    return [
        DummyTensor(name, target.slot.full_shape, target.slot.tensor.nbytes, seed)
        for name, target in targets.items()
    ]
