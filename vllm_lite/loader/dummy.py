"""Random weights, seeded and small, to try sizes and speed without a checkpoint."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from vllm_lite.layers.weights import WeightSlot
from vllm_lite.loader.weight_map import Target
from vllm_lite.loader.weight_rules import Part

# Small enough that no activation overflows, large enough that logits differ.
_RANGE = 0.02


@dataclass(frozen=True, slots=True)
class DummyTensor:
    """Uniform in [-0.02, 0.02] for matrices and biases; ones for norms and factors.

    Packed words are arbitrary, fp8 in [-1, 1], and one-dimensional integers zeros.

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
        if tensor.dim() == 1 and not self.name.endswith(".bias"):
            tensor.fill_(1 if tensor.is_floating_point() else 0)
            return
        generator = torch.Generator(tensor.device)
        generator.manual_seed(zlib.crc32(self.name.encode(), self.seed & 0xFFFFFFFF))
        if tensor.dtype in (torch.float32, torch.bfloat16, torch.float16):
            slot.write(tensor.uniform_(-_RANGE, _RANGE, generator=generator))
        elif tensor.is_floating_point():
            wide = torch.empty(tensor.shape, device=tensor.device)
            tensor.copy_(wide.uniform_(-1.0, 1.0, generator=generator))
        else:
            tensor.random_(generator=generator)


def make_dummies(targets: Mapping[str, Target], seed: int) -> list[DummyTensor]:
    return [
        DummyTensor(name, target.slot.full_shape, target.slot.tensor.nbytes, seed)
        for name, target in targets.items()
    ]
