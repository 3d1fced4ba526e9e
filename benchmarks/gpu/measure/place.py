"""Context of a section: its device, its budget and earlier sections' results.

On a GPU, or on a stand-in: the same code on the host in tiny sizes, which measures nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch

from measure.report import Row

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Limits:
    """The device's limits, as measured in this run."""

    bytes_per_s: float  # of a copy, read and written
    flops_per_s: float  # of a product of bf16 matrices of 8192 x 8192


@dataclass(frozen=True, slots=True)
class Place:
    """Arguments of every section."""

    is_dry: bool
    deadline: float  # monotonic seconds
    folder: Path  # for files that later sections and runs may read
    tell: Callable[[Row], None]
    limits: Limits | None = None
    demo: Path | None = None

    @property
    def device(self) -> torch.device:
        return torch.device("cpu" if self.is_dry else "cuda")

    def either(self, real: T, tiny: T) -> T:
        """`real` on a GPU, `tiny` on the stand-in."""
        return tiny if self.is_dry else real

    def seconds_left(self) -> float:
        return self.deadline - time.monotonic()

    def known_limits(self) -> Limits:
        """Raises where the device was not measured."""
        if self.limits is None:
            raise RuntimeError("the section `device` measured no limits in this run")
        return self.limits

    def synchronize(self) -> None:
        """Wait for the device."""
        if not self.is_dry:
            torch.cuda.synchronize()


def say(text: str) -> None:
    """A line of progress."""
    print(text, flush=True)
