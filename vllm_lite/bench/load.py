"""Sends a load's requests at their times and keeps what becomes of each.

Owns the pace, the limit on requests in flight and the progress bar. A request that fails is a
result with an error; only what concerns the load as a whole is raised.
"""

from __future__ import annotations

import asyncio
import gc
import resource
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import msgspec
from tqdm import tqdm

from vllm_lite.bench.datasets import Sample
from vllm_lite.bench.http_client import HttpClient, TransportError
from vllm_lite.bench.options import SamplingOptions, TargetOptions
from vllm_lite.bench.recorder import RequestResult, StreamRecorder, error_text

_BAR_INTERVAL = 0.5
_SPARE_FILES = 64


@dataclass(frozen=True, slots=True)
class PreparedRequest:
    """A request as it goes over the wire, and its prompt's length in tokens."""

    body: bytes
    prompt_tokens: int


def prepare(
    sample: Sample, model: str, target: TargetOptions, sampling: SamplingOptions
) -> PreparedRequest:
    """The streamed request for `sample`, in the shape of the target's API."""
    length = sample.output_tokens
    if target.is_chat:
        body: dict[str, object] = {
            "model": model,
            "messages": [{"role": "user", "content": sample.prompt}],
            "max_completion_tokens": length,
        }
        if target.logprobs is not None:
            body |= {"logprobs": True, "top_logprobs": target.logprobs}
    else:
        body = {"model": model, "prompt": sample.prompt, "max_tokens": length}
        if target.logprobs is not None:
            body["logprobs"] = target.logprobs
    body |= {"stream": True, "stream_options": {"include_usage": True}}
    if target.ignore_eos:
        body["ignore_eos"] = True
    body |= {**sampling.body, **target.extra_body}
    return PreparedRequest(msgspec.json.encode(body), sample.prompt_tokens)


class Sender:
    """Posts requests to one path and records their streams."""

    def __init__(self, client: HttpClient, path: str, request_id_prefix: str) -> None:
        self._client = client
        self._path = path
        self._prefix = request_id_prefix
        self.num_sent = 0
        self.running: dict[int, StreamRecorder] = {}

    async def send(self, request: PreparedRequest) -> RequestResult:
        """Send one request and see its answer through; an error is part of the result."""
        number = self.num_sent
        self.num_sent += 1
        recorder = self.running[number] = StreamRecorder()
        result = RequestResult(request.prompt_tokens)
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
        self._bar = tqdm(total=total, dynamic_ncols=True, disable=not is_shown, unit="req")
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
