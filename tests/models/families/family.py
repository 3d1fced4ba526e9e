"""A family's random tiny checkpoints: settings of its configuration, and cases of its options."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 32,
}
WINDOWED = {"use_sliding_window": True, "sliding_window": 7}


@dataclass(frozen=True)
class Family:
    """One architecture of transformers."""

    architecture: str
    # Beside TINY, or instead of it.
    settings: dict[str, Any] = field(default_factory=dict)
    # Further settings of each case; "" is the family as it stands.
    cases: dict[str, dict[str, Any]] = field(default_factory=lambda: {"": {}})
    # Fields of TINY that its configuration does not have.
    absent: tuple[str, ...] = ()
    # Changes the model of `architecture` before it gets its random weights.
    prepare: Callable[[Any], None] = field(default=lambda model: None)
    # Makes files of `architecture` those of a family that transformers does not have: changes the
    # configuration, and returns the tensors by their names there.
    rewrite: Callable[[dict[str, Any], dict[str, Tensor]], dict[str, Tensor]] | None = None


def named(architecture: str) -> Callable[[dict[str, Any], dict[str, Tensor]], dict[str, Tensor]]:
    """The same files under another architecture's name."""

    def rewrite(config: dict[str, Any], tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        config["architectures"] = [architecture]
        return tensors

    return rewrite
