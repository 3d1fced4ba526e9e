"""An engine core in the caller's own thread: `get_output()` runs a step.

For offline use without a child process, and for tests. VLLM_CPU_OMP_THREADS_BIND binds that
thread too: it computes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import wait
from typing import Any

from vllm_lite.config.vllm import VllmConfig
from vllm_lite.core.step import EngineCoreRequest
from vllm_lite.engine.core.calls import Calls
from vllm_lite.engine.core.engine_core import EngineCore
from vllm_lite.engine.link.messages import Answer, Command, StepOutputs
from vllm_lite.executor.executor import Executor
from vllm_lite.executor.select import make_executor
from vllm_lite.log import timeline
from vllm_lite.platform import bind_compute_threads


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
