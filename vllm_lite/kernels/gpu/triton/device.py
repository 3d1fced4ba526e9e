"""What the choice of a launch asks of a device: its generation and its number of processors.

Without an NVIDIA GPU these are the oldest target and one processor, for the interpreter.
"""

from __future__ import annotations

from functools import cache

import torch

OLDEST_TARGET = 80


@cache
def num_processors(device: torch.device) -> int:
    """How many programs run at once at least."""
    if device.type != "cuda":
        return 1
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


@cache
def target(device: torch.device) -> int:
    """The compute capability as one number: 80, 89, 90."""
    if device.type != "cuda":
        return OLDEST_TARGET
    major, minor = torch.cuda.get_device_capability(device)
    return 10 * major + minor


def has_float8(device: torch.device) -> bool:
    """Whether matrix instructions take 8-bit floats."""
    return target(device) >= 89
