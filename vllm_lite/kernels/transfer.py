"""Copies between host and device that nobody waits for; on a CPU they are there at once.

Knows memory and streams, not what is copied. A copy goes through page-locked memory, which
torch's allocator gives out again only when the copy is over, and into the calling thread's
current stream, so that later work there finds it done.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor


def to_device(array: npt.NDArray[np.generic], device: torch.device) -> Tensor:
    """`array` on `device`; on a CPU it is the array's own memory."""
    tensor = torch.from_numpy(array)
    if device.type == "cpu":
        return tensor
    if not len(array):
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


class Arriving:
    """A small tensor on its way to the host, which may wait for it in any thread."""

    def __init__(self, values: Tensor) -> None:
        self._event: torch.cuda.Event | None = None
        if values.device.type == "cpu":
            self._host = values
            return
        self._host = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
        self._host.copy_(values, non_blocking=True)
        self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._event.record()

    def wait(self) -> npt.NDArray[np.int64]:
        """Its values, once they are here."""
        if self._event is not None:
            self._event.synchronize()
        values: npt.NDArray[np.int64] = self._host.numpy()
        return values
