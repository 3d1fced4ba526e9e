"""Sends a load's requests at their times and keeps each result.

Owns the pace, the limit on requests in flight and the progress bar. A failed request is a
result with an error; only faults of the whole load are raised.
"""

from __future__ import annotations

import asyncio
import gc
import math
import resource
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import Literal

import numpy as np

from vllm_lite.bench.http_client import HttpClient, TransportError
from vllm_lite.bench.recorder import PreparedRequest, RequestResult, StreamRecorder, error_text
from vllm_lite.progress import progress_bar

_BAR_INTERVAL = 0.5
_SPARE_FILES = 64


@dataclass(frozen=True, slots=True)
class RampUp:
    """A rate that grows from `start` to `end` requests per second over the whole load."""

    strategy: Literal["linear", "exponential"]
    start: float
    end: float

    def rate(self, index: int, count: int) -> float:
        progress = index / max(count - 1, 1)
        if self.strategy == "linear":
            return self.start + (self.end - self.start) * progress
        return self.start * float((self.end / self.start) ** progress)


@dataclass(frozen=True, slots=True)
class RateChange:
    """The ramp-up reaches `rps` whole requests per second `seconds` after the start."""

    rps: int
    seconds: float


def arrival_times(
    count: int, rate: float, burstiness: float, rng: np.random.Generator
) -> list[float]:
    """`count` times at `rate` requests per second, the last exactly at count / rate.

    Gaps are Gamma distributed with shape `burstiness`, which is Poisson arrival at 1 and even
    spacing at inf.
    """
    if math.isinf(rate):
        return [0.0] * count
    times = np.cumsum([_gap(rate, burstiness, rng) for _ in range(count)])
    if times[-1] > 0:
        times *= count / rate / times[-1]
    return [float(time) for time in times]


def ramp_up_times(
    count: int, ramp_up: RampUp, burstiness: float, rng: np.random.Generator
) -> tuple[list[float], list[RateChange]]:
    """`count` times at a growing rate, and when the rate passes each whole number."""
    times: list[float] = []
    changes: list[RateChange] = []
    now = 0.0
    for index in range(count):
        rate = ramp_up.rate(index, count)
        now += _gap(rate, burstiness, rng)
        times.append(now)
        if not changes or int(rate) > changes[-1].rps:
            changes.append(RateChange(int(rate), now))
    return times, changes


def _gap(rate: float, burstiness: float, rng: np.random.Generator) -> float:
    if math.isinf(burstiness):
        return 1.0 / rate
    return float(rng.gamma(shape=burstiness, scale=1.0 / (rate * burstiness)))


class Sender:
    """Posts requests to one path and records the answers."""

    def __init__(
        self,
        client: HttpClient,
        path: str,
        request_id_prefix: str,
        make_recorder: Callable[[], StreamRecorder] = StreamRecorder,
    ) -> None:
        self._client = client
        self._path = path
        self._prefix = request_id_prefix
        self._make_recorder = make_recorder
        self.num_sent = 0
        self.running: dict[int, StreamRecorder] = {}

    async def send(self, request: PreparedRequest) -> RequestResult:
        """Send one request and see its answer through; an error is part of the result."""
        number = self.num_sent
        self.num_sent += 1
        recorder = self.running[number] = self._make_recorder()
        result = RequestResult(request.prompt_tokens, request.num_inputs)
        headers = {"x-request-id": f"{self._prefix}{number}"}
        result.start_time = time.perf_counter()
        try:
            status, refusal = await self._client.post(
                self._path, request.body, recorder.on_body, headers
            )
            if status != 200:
                result.error = f"HTTP {status}: {error_text(refusal)}"
        except TransportError as error:
            result.error = str(error)
        finally:
            del self.running[number]
        recorder.finish(result)
        return result


async def run_load(
    sender: Sender,
    requests: Sequence[PreparedRequest],
    times: Sequence[float],
    max_concurrency: int | None,
    show_progress: bool,
) -> tuple[list[RequestResult], float]:
    """Send each request at its time, in seconds from now; results in order, and the duration."""
    allow_open_files(min(max_concurrency or len(requests), len(requests)))
    limit = asyncio.Semaphore(max_concurrency) if max_concurrency else nullcontext()
    progress = _Progress(len(requests), sender, is_shown=show_progress)

    async def one(request: PreparedRequest) -> RequestResult:
        due = time.perf_counter()
        async with limit:
            result = await sender.send(request)
        result.queue_time = result.start_time - due
        progress.add(result)
        return result

    # What exists by now lives to the end: the collector need not look at it while we measure.
    gc.collect()
    gc.freeze()
    watcher = asyncio.create_task(progress.watch())
    tasks: list[asyncio.Task[RequestResult]] = []
    began = time.perf_counter()
    try:
        for request, at in zip(requests, times, strict=True):
            delay = began + at - time.perf_counter()
            if delay > 0:
                await asyncio.sleep(delay)
            tasks.append(asyncio.create_task(one(request)))
        results = await asyncio.gather(*tasks)
        return list(results), time.perf_counter() - began
    finally:
        for task in (watcher, *tasks):
            task.cancel()
        progress.close()
        gc.unfreeze()


@asynccontextmanager
async def probes(
    sender: Sender, request: PreparedRequest, rate: float
) -> AsyncIterator[list[RequestResult]]:
    """Send `request` again and again, 1 / `rate` seconds after each answer; none at rate 0.

    The list fills while the context is open, and is complete once it is closed.
    """
    answers: list[RequestResult] = []
    stop = asyncio.Event()

    async def send() -> None:
        while not stop.is_set():
            answers.append(await sender.send(request))
            with suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), 1 / rate)

    task = asyncio.create_task(send()) if rate > 0 else None
    try:
        yield answers
        stop.set()
        if task is not None:
            await task
    finally:
        if task is not None:
            task.cancel()


def allow_open_files(count: int) -> None:
    """Raise this process's limit on open files so that `count` connections fit, if it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count + _SPARE_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


class _Progress:
    """A bar over finished requests with the load's figures so far."""

    def __init__(self, total: int, sender: Sender, *, is_shown: bool) -> None:
        self._bar = progress_bar(total=total, is_shown=is_shown, unit="req")
        self._sender = sender
        self._num_chunks = self._num_failed = 0
        self._began = time.perf_counter()

    def add(self, result: RequestResult) -> None:
        self._num_chunks += len(result.itls) + 1 if result.is_success else 0
        self._num_failed += not result.is_success
        self._bar.update()

    async def watch(self) -> None:
        """Renew the figures twice a second, whether or not a request has ended."""
        while not self._bar.disable:
            running = self._sender.running.values()
            chunks = self._num_chunks + sum(recorder.num_chunks for recorder in running)
            rate = chunks / max(time.perf_counter() - self._began, 1e-9)
            failed = f", {self._num_failed} failed" if self._num_failed else ""
            self._bar.set_postfix_str(f"{len(running)} running, {rate:.1f} tok/s{failed}")
            await asyncio.sleep(_BAR_INTERVAL)

    def close(self) -> None:
        self._bar.close()
