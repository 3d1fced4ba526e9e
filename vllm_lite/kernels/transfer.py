"""Asynchronous copies between host and device; on a CPU nothing is copied.

A copy goes through page-locked memory, which torch's allocator reuses only after the copy
has ended, and into the calling thread's current stream, so that later work there finds
it done.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor


def to_device(array: npt.NDArray[np.generic], device: torch.device) -> Tensor:
    """Copy `array` to `device`; on a CPU the tensor shares the array's memory."""
    tensor = torch.from_numpy(array)
    if device.type == "cpu":
        return tensor
    if not len(array):
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


class Arriving:
    """Tensors of one device, int64 or float32, being copied to the host.

    Any thread may wait for them.
    """

    def __init__(self, *tensors: Tensor) -> None:
        self._event: torch.cuda.Event | None = None
        if tensors[0].device.type == "cpu":
            self._arrays = [tensor.numpy() for tensor in tensors]
            return
        self._likes = [(tensor.shape, tensor.dtype) for tensor in tensors]
        words = pack(tensors)
        self._words = torch.empty(words.shape, dtype=words.dtype, pin_memory=True)
        self._words.copy_(words, non_blocking=True)
        self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._event.record()

    def wait(self) -> list[npt.NDArray[Any]]:
        """Wait for the copy and return the tensors' contents."""
        if self._event is None:
            return self._arrays
        self._event.synchronize()
        return unpack(self._words, self._likes)


def pack(tensors: Sequence[Tensor]) -> Tensor:
    """Tensors, int64 or float32, as one row of int64, so that one copy is enough."""
    # Floats travel as their bits.
    words = [t if t.dtype == torch.int64 else t.view(torch.int32).long() for t in tensors]
    return torch.cat([part.flatten() for part in words])


def unpack(
    words: Tensor, likes: Sequence[tuple[torch.Size, torch.dtype]]
) -> list[npt.NDArray[Any]]:
    """The arrays of a packed row on the host; `likes` are the tensors' shapes and types."""
    parts = words.split_with_sizes([shape.numel() for shape, _ in likes])
    return [
        part.numpy().reshape(shape)
        if dtype == torch.int64
        else part.numpy().astype(np.int32).view(np.float32).reshape(shape)
        for part, (shape, dtype) in zip(parts, likes, strict=True)
    ]
