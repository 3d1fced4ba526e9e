"""A front end's hold on an engine core: start it, know when it ends and why, end it.

A CoreProcess is the real thing; a CoreThread runs the same core inside this process; a JoinedCore
was started by another front end. All have a channel and a heartbeat, so that clients cannot tell
the difference.
"""

from __future__ import annotations

import os
import select
import socket
from abc import ABC, abstractmethod

from vllm_lite import envs
from vllm_lite.config.vllm import VllmConfig
from vllm_lite.engine.link.channel import FrontEndChannel, Heartbeat
from vllm_lite.engine.link.messages import CoreFailed, CoreReady, Shutdown
from vllm_lite.errors import CheckpointError, EngineDeadError, UsageError, VLLMLiteError

# Seconds that messages of a core that has ended may still take to arrive.
LAST_WORDS_TIMEOUT = 0.2
_USER_ERRORS: dict[str, type[VLLMLiteError]] = {
    error.__name__: error for error in (UsageError, CheckpointError)
}


class CoreHandle(ABC):
    """The channel, the heartbeat, the start and the last words of any core."""

    def __init__(
        self, end: socket.socket, heartbeat: Heartbeat, exit_fd: int, front_end: int
    ) -> None:
        """`end`: a socket whose other end the core has."""
        # The index of the front end that holds this.
        self.front_end = front_end
        self.channel = FrontEndChannel(end)
        self.heartbeat = heartbeat
        # Readable (end of file) once the core has ended.
        self.exit_fd = exit_fd
        # The core's process, where it has one, and whether its steps use the processor.
        self.watched_pid: int | None = None
        self.computes_itself = False

    @abstractmethod
    def kill(self) -> None:
        """End the core at once."""

    @abstractmethod
    def exit_cause(self) -> str:
        """How the core ended, once it has."""

    def wait_ended(self, timeout: float) -> bool:
        """Whether the core ends within `timeout` seconds."""
        poller = select.poll()
        poller.register(self.exit_fd, select.POLLIN)
        return bool(poller.poll(timeout * 1000))

    def wait_ready(self) -> CoreReady:
        """Wait until the core takes requests.

        Raises the core's own UsageError or CheckpointError, or EngineDeadError where it ended
        otherwise or is not ready within VLLM_ENGINE_READY_TIMEOUT_S.
        """
        try:
            return self._wait_first_message()
        except BaseException:
            self.kill()
            self.close()
            raise

    def last_words(self) -> str:
        """The cause of the end: the core's own last message, else how it ended."""
        while self.channel.wait(LAST_WORDS_TIMEOUT):
            message = self.channel.receive()
            if isinstance(message, CoreFailed):
                return f"{message.kind}: {message.message}"
        return self.exit_cause()

    @abstractmethod
    def stop(self, timeout: float) -> None:
        """Leave the core; it ends with the front end that started it."""

    def close(self) -> None:
        self.channel.close()
        self.heartbeat.close()
        os.close(self.exit_fd)

    def _wait_first_message(self) -> CoreReady:
        limit = envs.VLLM_ENGINE_READY_TIMEOUT_S
        has_message = self.channel.wait(limit, other_fd=self.exit_fd)
        if not has_message and not self.wait_ended(0):
            raise EngineDeadError(
                f"The engine core was not ready within {limit} s; raise "
                "VLLM_ENGINE_READY_TIMEOUT_S if the model is just slow to load"
            )
        if not has_message and not self.channel.wait(LAST_WORDS_TIMEOUT):
            raise EngineDeadError(f"The engine core ended while starting: {self.exit_cause()}")
        message = self.channel.receive()
        if isinstance(message, CoreReady):
            return message
        assert isinstance(message, CoreFailed)
        if message.kind in _USER_ERRORS:
            raise _USER_ERRORS[message.kind](message.message)
        raise EngineDeadError(f"The engine core failed to start: {message.kind}: {message.message}")


class StartedCore(CoreHandle):
    """A core that this process started, and that ends with it."""

    def __init__(
        self, end: socket.socket, heartbeat: Heartbeat, exit_fd: int, num_front_ends: int = 1
    ) -> None:
        self.num_front_ends = num_front_ends
        # For the channels of further front ends, once the core has started.
        self.further_ends: list[socket.socket] = []
        super().__init__(end, heartbeat, exit_fd, front_end=0)

    @abstractmethod
    def start(self, config: VllmConfig) -> None:
        """Pass the configuration; the core begins to load."""

    def stop(self, timeout: float) -> None:
        """Ask the core to end after its current step; kill it after `timeout` seconds."""
        self.channel.send(Shutdown())
        if not self.wait_ended(timeout):
            self.kill()
        self.close()


class JoinedCore(CoreHandle):
    """A core that another process of the same server started and ends."""

    def __init__(self, channel_fd: int, heartbeat_fd: int, exit_fd: int, front_end: int) -> None:
        end = socket.socket(fileno=channel_fd)
        super().__init__(end, Heartbeat(heartbeat_fd), exit_fd, front_end)

    def kill(self) -> None:
        """Do nothing: the process that started the core notices for itself."""

    def exit_cause(self) -> str:
        return "its process ended"

    def stop(self, timeout: float) -> None:
        self.close()
