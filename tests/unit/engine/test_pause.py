"""A paused engine begins nothing, forgets nothing, and goes on as if nothing had been."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import pytest

from tests.fakes import scripted_tokens
from tests.unit.engine.engines import VOCAB_SIZE, async_engine
from vllm_lite.core.step import SchedulerOutput
from vllm_lite.engine.client import PauseMode
from vllm_lite.engine.front.async_llm import AsyncLLM
from vllm_lite.outputs import RequestOutput
from vllm_lite.sampling_params import RequestOutputKind, SamplingParams

PROMPT = [1, 2, 3]
COUNT = 60


def stream(engine: AsyncLLM, count: int = COUNT) -> AsyncIterator[RequestOutput]:
    params = SamplingParams(output_kind=RequestOutputKind.DELTA, max_tokens=count, ignore_eos=True)
    return engine.generate(PROMPT, params, "r")


async def read(outputs: AsyncIterator[RequestOutput]) -> tuple[list[int], str | None]:
    """The tokens of the rest of a stream, and how it ended."""
    tokens: list[int] = []
    reason = None
    async for output in outputs:
        tokens += output.outputs[0].token_ids
        reason = output.outputs[0].finish_reason
    return tokens, reason


def slowly(step: SchedulerOutput) -> None:
    time.sleep(0.003)


async def test_pause_aborts_running_requests_and_holds_new_ones() -> None:
    async with async_engine(step=slowly) as (engine, _):
        running = stream(engine)
        await anext(running)
        await engine.pause_generation()
        assert await engine.is_paused()
        _, reason = await read(running)
        assert reason == "abort"
        stats = await engine.get_stats()
        assert (stats.num_used_blocks, stats.num_cached_blocks) == (0, 0)
        held = asyncio.create_task(read(stream(engine)))
        while (await engine.get_stats()).num_waiting != 1:
            await asyncio.sleep(0)
        assert not held.done()
        await engine.resume_generation()
        assert not await engine.is_paused()
        assert await held == (scripted_tokens(PROMPT, COUNT, vocab_size=VOCAB_SIZE), "length")


@pytest.mark.parametrize("mode", ["wait", "keep"])
async def test_paused_requests_lose_no_token(mode: PauseMode) -> None:
    async with async_engine(step=slowly) as (engine, _):
        running = stream(engine)
        first = (await anext(running)).outputs[0].token_ids
        await engine.pause_generation(mode)
        stats = await engine.get_stats()
        assert stats.num_running == (1 if mode == "keep" else 0)
        await engine.resume_generation()
        rest, reason = await read(running)
        assert first + rest == scripted_tokens(PROMPT, COUNT, vocab_size=VOCAB_SIZE)
        assert reason == "length"


async def test_a_resume_ends_a_pause_that_still_waits() -> None:
    async with async_engine(step=slowly) as (engine, _):
        running = stream(engine, 200)
        await anext(running)
        pause = asyncio.create_task(engine.pause_generation("wait"))
        while not await engine.is_paused():
            await asyncio.sleep(0)
        assert not pause.done()
        await engine.resume_generation()
        await pause
        assert (await read(running))[1] == "length"


async def test_reader_leaving_during_a_pause_is_dropped() -> None:
    async with async_engine() as (engine, _):
        await engine.pause_generation()
        held = asyncio.create_task(read(stream(engine)))
        while (await engine.get_stats()).num_waiting != 1:
            await asyncio.sleep(0)
        held.cancel()
        while (await engine.get_stats()).num_waiting:
            await asyncio.sleep(0)
        await engine.resume_generation()
        assert (await engine.get_stats()).num_running == 0
