"""What every checkpoint format offers the loader: named tensors that can fill a slot."""

from __future__ import annotations

from typing import Protocol

from vllm_lite.layers.weights import WeightSlot


class CheckpointTensor(Protocol):
    """One tensor of a checkpoint, not yet read; `name` is Hugging Face's."""

    @property
    def name(self) -> str: ...

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def nbytes(self) -> int:
        """Bytes that reading it moves, for progress."""
        ...

    def fill(self, slot: WeightSlot) -> None:
        """Read and write this rank's part; raises CheckpointError on damage."""
        ...
