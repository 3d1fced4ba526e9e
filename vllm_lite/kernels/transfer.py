"""Asynchronous copies between host and device; on a CPU nothing is copied.

A copy goes through page-locked memory, which torch's allocator reuses only after the copy
has ended, and into the calling thread's current stream, so that later work there finds
it done.
"""

from __future__ import annotations

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
    """Ids and logits of R rows being copied to the host; any thread may wait for them."""

    def __init__(self, token_ids: Tensor, logits: Tensor) -> None:
        """`token_ids` are [R] int64, `logits` [R] float32."""
        self._ids, self._logits = token_ids, logits
        self._event: torch.cuda.Event | None = None
        if token_ids.device.type == "cpu":
            return
        # Logits travel as integer bits, so that one copy is enough.
        values = torch.stack([token_ids, logits.view(torch.int32).long()])
        host = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
        host.copy_(values, non_blocking=True)
        self._ids, self._logits = host
        self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._event.record()

    def wait(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
        """Wait for the copy and return ids and logits."""
        ids: npt.NDArray[np.int64] = self._ids.numpy()
        logits: npt.NDArray[np.float32] = self._logits.numpy()
        if self._event is not None:
            self._event.synchronize()
            logits = logits.astype(np.int32).view(np.float32)
        return ids, logits
