"""An engine core that another process of the same server started and ends.

Knows that process only by the descriptors it inherited from it.
"""

from __future__ import annotations

import select
from pathlib import Path

from vllm_lite.engine.link.core_handle import CoreHandle
from vllm_lite.engine.link.front_ends import FrontEndSeat
from vllm_lite.engine.link.heartbeat import Heartbeat


class JoinedCore(CoreHandle):
    """One more front end's hold on a core; it can leave it, but not end it."""

    def __init__(
        self, directory: Path, heartbeat_fd: int, exit_fd: int, seat: FrontEndSeat
    ) -> None:
        super().__init__(directory, Heartbeat(heartbeat_fd), exit_fd, seat)

    def kill(self) -> None:
        """The process that started the core sees for itself what it is worth."""

    def exit_cause(self) -> str:
        return "its process ended"

    def wait_ended(self, timeout: float) -> bool:
        poller = select.poll()
        poller.register(self.exit_fd, select.POLLIN)
        return bool(poller.poll(timeout * 1000))

    def stop(self, timeout: float) -> None:
        self.close()
