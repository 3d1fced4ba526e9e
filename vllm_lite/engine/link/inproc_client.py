"""An engine core without a process of its own: in a thread, or in the caller's own.

A CoreThread, for --disable-frontend-multiprocessing, cannot be killed and shares Python's lock with
its front end. An InprocClient runs a step in `get_output()`, for offline use and for tests;
VLLM_CPU_OMP_THREADS_BIND binds that thread too: it computes.
"""

from __future__ import annotations

import os
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import wait
from typing import Any

from vllm_lite.config.vllm import VllmConfig
from vllm_lite.core.step import EngineCoreRequest
from vllm_lite.engine.core.calls import Calls
from vllm_lite.engine.core.engine_core import EngineCore
from vllm_lite.engine.core.loop import CoreLoop
from vllm_lite.engine.link.channel import CoreChannel, Heartbeat
from vllm_lite.engine.link.core_handle import StartedCore
from vllm_lite.engine.link.messages import Answer, Command, Shutdown, StepOutputs
from vllm_lite.executor.executor import Executor
from vllm_lite.executor.select import make_executor
from vllm_lite.lifeline import announce_exit
from vllm_lite.log import timeline
from vllm_lite.platform import bind_compute_threads


class CoreThread(StartedCore):
    """An engine core in a thread of this process."""

    def __init__(self, make_executor: Callable[[VllmConfig], Executor] = make_executor) -> None:
        exit_fd, self._exit_writer = os.pipe()
        end, self._core_end = socket.socketpair()
        super().__init__(end, Heartbeat.create(), exit_fd)
        self._make_executor = make_executor
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None

    def start(self, config: VllmConfig) -> None:
        # Duplicated here: a handle that is closed at once does not wait for the thread.
        heartbeat = Heartbeat(os.dup(self.heartbeat.fd))
        self._thread = threading.Thread(
            target=self._run, args=(config, heartbeat), name="engine-core", daemon=True
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
            self._core_end.close()
        super().close()

    def _run(self, config: VllmConfig, heartbeat: Heartbeat) -> None:
        timeline.restart()
        channel = CoreChannel([self._core_end])
        self._error = CoreLoop(channel, heartbeat).run(
            lambda: EngineCore(config, self._make_executor)
        )
        channel.close(linger=1.0)
        heartbeat.close()
        announce_exit(self._exit_writer)


class InprocClient:
    """Used as a SyncMPClient is; whatever kills a step reaches the caller as it is."""

    def __init__(
        self, config: VllmConfig, make_executor: Callable[[VllmConfig], Executor] = make_executor
    ) -> None:
        timeline.restart()
        if not config.parallel.has_ranks:
            bind_compute_threads()
        self.core = EngineCore(config, make_executor)
        self.ready = self.core.describe()
        self._outputs: deque[StepOutputs] = deque()
        self._is_open = True

    def add_requests(self, requests: list[EngineCoreRequest]) -> None:
        self.core.add_requests(requests)

    def abort_requests(self, request_ids: Iterable[str]) -> None:
        self.core.abort_requests(request_ids)

    def call(self, command: Command[Answer]) -> Answer:
        return self.call_all([command])[0]

    def call_all(self, commands: Iterable[Command[Answer]]) -> list[Answer]:
        answers: dict[int, Any] = {}
        calls = Calls(self.core, answers.__setitem__)
        for index, command in enumerate(commands):
            calls.begin(index, command)
        while calls:
            if calls.futures:
                wait(calls.futures)
            elif self.core.has_work():
                self._outputs.append(self.core.step())
            calls.advance()
        return [answers[index] for index in sorted(answers)]

    def get_output(self) -> StepOutputs:
        return self._outputs.popleft() if self._outputs else self.core.step()

    def shutdown(self) -> None:
        if self._is_open:
            self._is_open = False
            self.core.shutdown()
