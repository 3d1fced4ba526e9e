"""Made-up weights: seeded, small, and the same for any number of ranks in distribution only.

For trying out sizes and speed without a checkpoint; the text that comes out is noise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from vllm_lite.layers.weights import WeightSlot
from vllm_lite.loader.weight_map import Target

# Small enough that no activation overflows, large enough that logits differ.
_RANGE = 0.02


@dataclass(frozen=True, slots=True)
class DummyTensor:
    """Uniform in [-0.02, 0.02] for matrices and biases; ones for norms and factors."""

    name: str
    shape: tuple[int, ...]
    nbytes: int
    generator: torch.Generator

    def fill(self, slot: WeightSlot) -> None:
        if slot.tensor.dim() == 1 and not self.name.endswith(".bias"):
            slot.tensor.fill_(1.0)
        else:
            slot.tensor.uniform_(-_RANGE, _RANGE, generator=self.generator)


def make_dummies(targets: Mapping[str, Target], seed: int, device: str) -> list[DummyTensor]:
    """One for every target."""
    generator = torch.Generator(device).manual_seed(seed)
    return [
        DummyTensor(name, target.slot.full_shape, target.slot.tensor.nbytes, generator)
        for name, target in targets.items()
    ]
