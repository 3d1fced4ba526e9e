"""The interface of a checkpoint format: named tensors that can fill a slot."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from vllm_lite.layers.weights import WeightSlot
from vllm_lite.loader.weight_rules import Part


class CheckpointTensor(Protocol):
    """One tensor of a checkpoint, not yet read; `name` is the checkpoint's."""

    @property
    def name(self) -> str: ...

    @property
    def path(self) -> Path | None:
        """The file that holds it, or its values; None: no file does."""
        ...

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def nbytes(self) -> int:
        """Bytes that reading it moves, for progress."""
        ...

    def fill(self, slot: WeightSlot, part: Part) -> None:
        """Read this rank's part of a view into a slot; raises CheckpointError on damage."""
        ...
