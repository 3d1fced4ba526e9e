"""Large copies from host to device memory through a few page-locked buffers.

For weights: the source is a mapped file, of which no more than the buffers hold is in memory
twice. A copy runs while the next piece is read; a buffer is reused only after the copy out of
it has ended. Each thread has its own buffers.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

_NUM_BUFFERS = 2
_BUFFER_BYTES = 8 << 20


class Fence(Protocol):
    """A point in a device's queue of work."""

    def record(self) -> None:
        """Move the fence behind all work the calling thread has queued."""
        ...

    def synchronize(self) -> None:
        """Wait until the device has reached it; at once if nothing was recorded."""
        ...


class Stage:
    """Copies through two buffers in turn."""

    def __init__(
        self,
        make_buffer: Callable[[int], Tensor],
        make_fence: Callable[[], Fence],
        num_bytes: int = _BUFFER_BYTES,
    ) -> None:
        """`make_buffer(n)` returns uint8 [n] that the device can copy from."""
        self._num_bytes = num_bytes
        self._places = [(make_buffer(num_bytes), make_fence()) for _ in range(_NUM_BUFFERS)]

    def write(self, target: Tensor, source: Tensor) -> None:
        """Copy `source`, expanded to `target`'s shape; types are converted on the host."""
        source = source.expand_as(target)
        if target.dim() == 0:
            target, source = target[None], source[None]
        if target.numel() == 0:
            return
        row_bytes = target[0].numel() * target.itemsize
        if row_bytes > self._num_bytes:
            for part, of_part in zip(target, source, strict=True):
                self.write(part, of_part)
            return
        step = self._num_bytes // row_bytes
        for first in range(0, len(target), step):
            self._send(target[first : first + step], source[first : first + step])

    def _send(self, target: Tensor, source: Tensor) -> None:
        buffer, fence = place = self._places.pop(0)
        self._places.append(place)
        fence.synchronize()
        size = target.numel() * target.itemsize
        staged = buffer[:size].view(target.dtype).view(target.shape)
        staged.copy_(source)
        target.copy_(staged, non_blocking=True)
        fence.record()


class _Stages(threading.local):
    """The calling thread's stage, made at its first copy."""

    def __init__(self) -> None:
        self.stage = Stage(_locked_buffer, _cuda_event)


def _locked_buffer(num_bytes: int) -> Tensor:
    return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True)


def _cuda_event() -> Fence:
    # A blocking event sleeps, so that another thread can use the core.
    event: Fence = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
    return event


_stages: _Stages | None = None
_making = threading.Lock()


def write_weights(target: Tensor, source: Tensor) -> None:
    """Copy `source` on the host, expanded to `target`'s shape, to `target` on any device.

    On a GPU the copy may still be running; work that the thread launches later runs after it.
    """
    if target.device.type != "cuda" or source.device.type != "cpu":
        target.copy_(source)
        return
    global _stages
    with _making:
        if _stages is None:
            _stages = _Stages()
    _stages.stage.write(target, source)
