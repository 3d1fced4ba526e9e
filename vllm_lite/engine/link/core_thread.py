"""An engine core in a thread of this process, for --disable-frontend-multiprocessing.

Unlike a CoreProcess it cannot be killed, and it shares Python's lock with its front end.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

from vllm_lite.config.vllm import VllmConfig
from vllm_lite.engine.core.engine_core import EngineCore
from vllm_lite.engine.core.loop import CoreLoop
from vllm_lite.engine.link.channel import CoreChannel
from vllm_lite.engine.link.core_handle import StartedCore
from vllm_lite.engine.link.heartbeat import Heartbeat
from vllm_lite.engine.link.messages import Shutdown
from vllm_lite.executor.executor import Executor
from vllm_lite.executor.select import make_executor
from vllm_lite.lifeline import announce_exit
from vllm_lite.log import timeline


class CoreThread(StartedCore):
    """An engine core in a thread of this process."""

    def __init__(self, make_executor: Callable[[VllmConfig], Executor] = make_executor) -> None:
        super().__init__()
        self._make_executor = make_executor
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None

    def start(self, config: VllmConfig) -> None:
        self._thread = threading.Thread(
            target=self._run, args=(config,), name="engine-core", daemon=True
        )
        self._thread.start()

    def kill(self) -> None:
        """A thread cannot be killed: it ends after its step, or with the process."""
        self.channel.send(Shutdown())

    def exit_cause(self) -> str:
        if self._error is not None:
            return f"{type(self._error).__name__}: {self._error}"
        return "it was stopped"

    def close(self) -> None:
        if self._thread is None:
            os.close(self._exit_writer)
        super().close()

    def _run(self, config: VllmConfig) -> None:
        timeline.restart()
        channel = CoreChannel(self.directory)
        heartbeat = Heartbeat(os.dup(self.heartbeat.fd))
        self._error = CoreLoop(channel, heartbeat).run(
            lambda: EngineCore(config, self._make_executor)
        )
        channel.close(linger=1.0)
        heartbeat.close()
        announce_exit(self._exit_writer)
