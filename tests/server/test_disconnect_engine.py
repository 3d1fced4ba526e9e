"""A client that leaves frees everything within a step, whatever its request was doing.

Over a real engine (its model scripted), so that blocks, queue and counters are the real ones.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from tests.server.harness import Connection
from tests.unit.engine.engines import async_engine
from vllm_lite.config.server import ServerConfig
from vllm_lite.core.step import SchedulerOutput
from vllm_lite.engine.front.async_llm import AsyncLLM
from vllm_lite.server.app import build_app

PATH = "/v1/completions"
ENDLESS = {"max_tokens": 200, "ignore_eos": True}
LONG = [1 + i % 200 for i in range(150)]


class Stepper:
    """Lets the engine take as many steps as a test allows, then holds it before the next."""

    def __init__(self) -> None:
        self.steps: list[SchedulerOutput] = []
        self._allowed = threading.Semaphore(0)
        self._free = threading.Event()
        self.num_allowed = 0

    def __call__(self, step: SchedulerOutput) -> None:
        self.steps.append(step)
        while not self._free.is_set() and not self._allowed.acquire(timeout=0.05):
            pass

    def allow(self, count: int) -> None:
        self.num_allowed += count
        for _ in range(count):
            self._allowed.release()

    def release(self) -> None:
        self._free.set()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.002)


async def check_free(engine: AsyncLLM) -> None:
    """Nothing is held any more, on either side of the engine."""
    async with asyncio.timeout(20):
        stats = await engine.get_stats()
        while stats.num_used_blocks or stats.num_running or stats.num_waiting:
            await asyncio.sleep(0.002)
            stats = await engine.get_stats()
    assert stats.num_free_blocks + stats.num_cached_blocks == stats.num_total_blocks
    assert not engine._outputs.has_unfinished_requests()
    assert engine._outputs.num_waiting_tokens == 0


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("moment", ["queued", "prefilling", "generating"])
async def test_a_client_that_leaves_frees_everything_within_a_step(
    moment: str, n: int, stream: bool
) -> None:
    stepper = Stepper()
    options = {"max_num_seqs": 4, "max_num_batched_tokens": 16}
    async with async_engine(step=stepper, **options) as (engine, _):
        app = build_app(engine, ServerConfig())
        others = []
        if moment == "queued":
            body = {"prompt": [[9]] * 4, **ENDLESS}
            others.append(Connection(app, PATH, body))
            await until(lambda: len(stepper.steps) > 0)
            stepper.allow(2)
            await until(lambda: len(stepper.steps) > 2)
        prompt: Any = LONG if moment == "prefilling" else [1, 2, 3]
        leaver = Connection(app, PATH, {"prompt": prompt, "n": n, "stream": stream, **ENDLESS})
        await until(lambda: engine._outputs.num_unfinished == 4 * len(others) + n)
        stepper.allow(3)
        if moment == "generating" and stream:
            await asyncio.wait_for(leaver.wait_bytes(), 20)
        # Held in a step that it began after all that it was allowed.
        await until(lambda: len(stepper.steps) == stepper.num_allowed + 1)
        choices = engine._outputs._choices
        mine = set(list(choices)[4 * len(others) :])
        assert len(mine) == n
        await leaver.leave()
        assert not mine & set(choices)
        # The step in hand cannot be called back. What the core reads after the abort, it answers
        # only once the abort is done.
        later = asyncio.ensure_future(engine.get_stats())
        while not later.done():
            stepper.allow(1)
            await until(lambda: later.done() or len(stepper.steps) > stepper.num_allowed)
        at_most = len(stepper.steps)
        for other in others:
            await other.leave()
        stepper.release()
        await check_free(engine)
        assert not any(mine & set(s.num_scheduled_tokens) for s in stepper.steps[at_most:])
        metrics = engine.registry
        assert metrics is not None
        labels = {"model_name": "tiny", "engine": "0", "finished_reason": "abort"}
        aborted = metrics.get_sample_value("vllm:request_success_total", labels)
        assert aborted == n + 4 * len(others)
