"""An engine core in the caller's own thread: a CoreClient whose get_output() runs a step.

For offline use without a child process, and for tests. VLLM_CPU_OMP_THREADS_BIND binds that
thread too: it computes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import wait

from vllm_lite.config.vllm import VllmConfig
from vllm_lite.core.step import EngineCoreRequest
from vllm_lite.engine.core.engine_core import EngineCore
from vllm_lite.engine.link.messages import StepOutputs
from vllm_lite.executor.executor import Executor
from vllm_lite.log import timeline
from vllm_lite.metrics.stats import SchedulerStats
from vllm_lite.platform import bind_compute_threads
from vllm_lite.sampling_params import SamplingParams
from vllm_lite.structured_output.grammar import Refusal


class InprocClient:
    """Satisfies core_client.CoreClient; whatever kills a step reaches the caller as it is."""

    def __init__(
        self, config: VllmConfig, executor_class: Callable[[VllmConfig], Executor]
    ) -> None:
        timeline.restart()
        if not config.parallel.has_ranks:
            bind_compute_threads()
        self.core = EngineCore(config, executor_class)
        self.ready = self.core.describe()
        self._is_open = True

    def add_requests(self, requests: list[EngineCoreRequest]) -> None:
        self.core.add_requests(requests)

    def abort_requests(self, request_ids: Iterable[str]) -> None:
        self.core.abort_requests(request_ids)

    def prepare(self, asked: Iterable[SamplingParams]) -> list[Refusal | None]:
        constraints = self.core.constraints
        calls = [(params, constraints.prepare(params)) for params in asked]
        wait([future for _, future in calls])
        return [constraints.verdict(params, future) for params, future in calls]

    def get_output(self) -> StepOutputs:
        return self.core.step()

    def reset_prefix_cache(self) -> bool:
        return self.core.reset_prefix_cache()

    def get_stats(self) -> SchedulerStats:
        return self.core.make_stats()

    def sleep(self, releases: bool) -> None:
        self.core.pause("abort")
        while not self.core.is_quiet:
            self.core.step()
        if self.core.reset_prefix_cache() and releases:
            self.core.sleep()

    def wake_up(self) -> None:
        self.core.resume()

    def shutdown(self) -> None:
        if self._is_open:
            self._is_open = False
            self.core.shutdown()
