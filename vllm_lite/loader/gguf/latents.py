"""The expansion of latent attention, which newer GGUF files keep as two stacks of matrices.

Keys' part is stored for each head inputs by outputs; other checkpoints have one linear layer whose
outputs are, head by head, a key's and then a value's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from vllm_lite.layers.weights import WeightSlot
from vllm_lite.loader.tensors import CheckpointTensor, shown_together
from vllm_lite.loader.weight_rules import Part

_KEYS, _VALUES = ".attn_k_b.weight", ".attn_v_b.weight"


class _Stack(CheckpointTensor, Protocol):
    def values(self, dtype: torch.dtype) -> Tensor: ...


@dataclass(frozen=True, slots=True)
class LatentExpansion:
    """Both stacks as the layer [H * (key + value), rank]."""

    name: str
    # [H, rank, key] and [H, value, rank].
    keys: _Stack
    made_values: _Stack

    @property
    def path(self) -> Path | None:
        return self.keys.path

    @property
    def shown(self) -> str:
        return shown_together((self.keys, self.made_values), "with")

    @property
    def shape(self) -> tuple[int, ...]:
        heads, rank, key_size = self.keys.shape
        return heads * (key_size + self.made_values.shape[1]), rank

    @property
    def nbytes(self) -> int:
        return self.keys.nbytes + self.made_values.nbytes

    def fill(self, slot: WeightSlot, part: Part) -> None:
        dtype = slot.tensor.dtype
        keys, values = self.keys.values(dtype).transpose(1, 2), self.made_values.values(dtype)
        joined = torch.cat((keys, values), 1).reshape(self.shape)
        slot.write(part.values(joined[part.region(slot)]))


def join_latents(tensors: Iterable[_Stack]) -> Iterator[CheckpointTensor]:
    """The tensors, the two of an expansion as one, under the name of those that are one."""
    stored = {tensor.name: tensor for tensor in tensors}
    for name, tensor in stored.items():
        layer = name.removesuffix(_KEYS).removesuffix(_VALUES)
        keys, values = stored.get(layer + _KEYS), stored.get(layer + _VALUES)
        if layer == name or keys is None or values is None:
            yield tensor
        elif tensor is keys:
            yield LatentExpansion(f"{layer}.attn_kv_b.weight", keys, values)
