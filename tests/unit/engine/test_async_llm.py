"""AsyncLLM over real sockets, with a scripted core in a thread."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.fakes import scripted_tokens
from tests.unit.engine.engines import VOCAB_SIZE, async_engine, says
from vllm_lite.core.request import RequestStatus
from vllm_lite.core.step import EngineCoreOutput, SchedulerOutput
from vllm_lite.engine.core.constraints import Constraints
from vllm_lite.engine.front.async_llm import AsyncLLM
from vllm_lite.errors import (
    EngineDeadError,
    EngineGenerateError,
    QueueFullError,
    RequestError,
    UnavailableError,
)
from vllm_lite.outputs import RequestOutput
from vllm_lite.sampling_params import RequestOutputKind, SamplingParams

ENDLESS = {"max_tokens": 200, "ignore_eos": True}


def delta(**params: Any) -> SamplingParams:
    return SamplingParams(**{"output_kind": RequestOutputKind.DELTA, "max_tokens": 200, **params})


async def collect(stream: AsyncIterator[RequestOutput]) -> list[RequestOutput]:
    return [output async for output in stream]


async def text_of(engine: AsyncLLM, prompt: str = "say>", **params: Any) -> str:
    outputs = await collect(engine.generate(prompt, delta(**params), "r"))
    return "".join(output.outputs[0].text for output in outputs)


async def no_blocks_used(engine: AsyncLLM, timeout: float = 2.0) -> None:
    deadline = time.monotonic() + timeout
    while (await engine.get_stats()).num_used_blocks:
        assert time.monotonic() < deadline, "blocks are still held"
        await asyncio.sleep(0.005)


def slowly(step: SchedulerOutput) -> None:
    time.sleep(0.003)


async def test_many_requests_at_once_each_get_their_own_answer() -> None:
    async with async_engine(max_num_seqs=4) as (engine, _):
        prompts = [[i, i + 1, i + 2] for i in range(40)]
        streams = [
            collect(engine.generate(p, delta(max_tokens=20, ignore_eos=True), "same id"))
            for p in prompts
        ]
        for prompt, outputs in zip(prompts, await asyncio.gather(*streams), strict=True):
            tokens = [i for output in outputs for i in output.outputs[0].token_ids]
            assert tokens == scripted_tokens(prompt, 20, vocab_size=VOCAB_SIZE)
            assert {output.request_id for output in outputs} == {"same id"}
        await no_blocks_used(engine)


async def test_a_bad_request_is_refused_before_the_stream_begins() -> None:
    async with async_engine() as (engine, _):
        with pytest.raises(RequestError):
            engine.generate([VOCAB_SIZE], delta(), "r")
        with pytest.raises(RequestError, match="priority"):
            engine.generate([1], delta(), "r", priority=2**31)
        with pytest.raises(RequestError):
            engine.generate("", delta(), "r")


async def test_a_reader_that_leaves_frees_its_blocks() -> None:
    async with async_engine(step=slowly) as (engine, executor):
        for leave in ("close", "cancel"):
            stream = engine.generate("say>", delta(n=3, **ENDLESS), "r")
            await anext(stream)
            assert (await engine.get_stats()).num_running == 3
            if leave == "close":
                await stream.aclose()  # type: ignore[attr-defined]
            else:
                task = asyncio.create_task(collect(stream))
                await asyncio.sleep(0.02)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            await no_blocks_used(engine)
            assert not engine._outputs.has_unfinished_requests()
        await text_of(engine, max_tokens=1)
        assert executor.made.num_known_requests <= 1


async def test_a_slow_reader_gets_one_merged_delta() -> None:
    first_is_read = threading.Event()
    steps = iter(range(100))

    def wait_for_reader(step: SchedulerOutput) -> None:
        if next(steps) == 1:
            first_is_read.wait(5)

    async with async_engine(says("0123456789"), step=wait_for_reader) as (engine, _):
        stream = engine.generate("say>", delta(logprobs=0), "r")
        first = await anext(stream)
        first_is_read.set()
        while engine._outputs.has_unfinished_requests():
            await asyncio.sleep(0.005)
        rest = await collect(stream)
        assert len(rest) == 1 and rest[0].finished
        assert first.outputs[0].text + rest[0].outputs[0].text == "0123456789"
        choice = rest[0].outputs[0]
        assert choice.logprobs is not None
        assert len(choice.logprobs) == len(choice.token_ids)


async def test_abort_gives_a_last_output() -> None:
    async with async_engine(step=slowly) as (engine, _):
        stream = engine.generate("say>", delta(**ENDLESS), "mine")
        await anext(stream)
        await engine.abort("mine")
        last = (await collect(stream))[-1]
        assert last.finished and last.outputs[0].finish_reason == "abort"
        await no_blocks_used(engine)
        await engine.abort(["mine", "unknown"])


async def test_a_failed_step_fails_its_requests_and_no_others() -> None:
    def fails_once(step: SchedulerOutput) -> None:
        if step.num_scheduled_tokens and not failures:
            failures.append(step)
            raise ValueError("at /secret")

    failures: list[SchedulerOutput] = []
    async with async_engine(step=fails_once) as (engine, _):
        with pytest.raises(EngineGenerateError) as failed:
            await text_of(engine)
        assert "secret" not in str(failed.value)
        assert await text_of(engine, max_tokens=2, ignore_eos=True)
        assert not engine.errored
        await no_blocks_used(engine)


async def test_an_error_of_one_choice_ends_the_request() -> None:
    async with async_engine(step=slowly) as (engine, executor):
        stream = engine.generate("say>", delta(n=2, **ENDLESS), "r")
        await anext(stream)
        running = executor.made.steps[-1].num_scheduled_tokens
        executor.made.fail_next = {next(iter(running)): "broken"}
        with pytest.raises(EngineGenerateError, match="broken"):
            await collect(stream)
        await no_blocks_used(engine)


async def test_a_request_that_its_constraint_ends_is_refused_with_the_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(
        self: Constraints, outputs: list[EngineCoreOutput], requests: object
    ) -> list[tuple[str, RequestStatus]]:
        for output in outputs:
            output.finish_reason, output.stop_reason, output.is_refused = "error", "too slow", True
        return [(output.request_id, RequestStatus.FINISHED_ERROR) for output in outputs]

    async with async_engine() as (engine, _):
        with monkeypatch.context() as patch, pytest.raises(RequestError, match="too slow"):
            patch.setattr(Constraints, "advance", broken)
            await text_of(engine)
        assert await text_of(engine, max_tokens=2, ignore_eos=True)
        await no_blocks_used(engine)


async def test_everyone_hears_of_a_dead_core() -> None:
    def always_failing(step: SchedulerOutput) -> None:
        raise RuntimeError("the device is gone")

    async with async_engine(step=always_failing) as (engine, _):
        with pytest.raises(EngineDeadError, match="the device is gone"):
            for _ in range(20):
                try:
                    await text_of(engine, max_tokens=1)
                except EngineGenerateError:
                    continue
        assert engine.errored and not engine.is_running
        assert "the device is gone" in str(engine.dead_error)
        with pytest.raises(EngineDeadError):
            await engine.check_health()
        with pytest.raises(EngineDeadError):
            engine.generate("a", delta(), "r")


async def test_waiting_readers_raise_when_the_core_dies() -> None:
    def dies(request_id: str, token_ids: list[int]) -> int:
        if len(token_ids) > 20:
            raise EngineDeadError("state in doubt")
        return 65

    async with async_engine(dies) as (engine, _):
        streams = [collect(engine.generate("abc", delta(**ENDLESS), str(i))) for i in range(6)]
        results = await asyncio.gather(*streams, return_exceptions=True)
        assert {type(result) for result in results} == {EngineDeadError}
        assert all("state in doubt" in str(result) for result in results)


async def test_a_stuck_step_kills_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS", "1")
    monkeypatch.setattr("vllm_lite.engine.link.core_client.INTERVAL", 0.2)
    stuck = {"for": 0.0}
    async with async_engine(step=lambda _: time.sleep(stuck["for"])) as (engine, _):
        await text_of(engine, max_tokens=2)
        stuck["for"] = 3.0
        with pytest.raises(EngineDeadError, match="VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS"):
            await text_of(engine, max_tokens=2)
        stuck["for"] = 0.0


async def test_admission_is_bounded() -> None:
    limits = {"max_num_seqs": 2, "max_num_queued_reqs": 3, "max_num_queued_tokens": 60}
    async with async_engine(step=slowly, **limits) as (engine, _):
        streams = [engine.generate([1] * 10, delta(**ENDLESS), "r") for _ in range(3)]
        tasks = [asyncio.create_task(collect(stream)) for stream in streams]
        await asyncio.sleep(0.1)
        with pytest.raises(QueueFullError, match="max-num-queued-reqs"):
            engine.generate([1], delta(n=5), "r")
        with pytest.raises(QueueFullError, match="max-num-queued-tokens"):
            engine.generate([1] * 70, delta(), "r")
        engine.generate([1] * 10, delta(), "r")
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        # One request may be larger than the limit when nothing waits.
        engine.generate([1] * 70, delta(), "r")
        samples = engine.registry and engine.registry.get_sample_value(
            "vllm:admission_rejections_total",
            {"model_name": "tiny", "reason": "max_num_queued_reqs"},
        )
        assert samples == 1


async def test_a_part_of_a_request_goes_in_however_much_waits() -> None:
    async with async_engine(max_num_seqs=2, max_num_queued_reqs=1) as (engine, _):
        promised = [engine.generate([65], delta(max_tokens=1), "r") for _ in range(3)]
        with pytest.raises(QueueFullError):
            engine.generate([65], delta(max_tokens=1), "r")
        promised.append(engine.generate([65], delta(max_tokens=1), "r", is_part=True))
        await asyncio.gather(*map(collect, promised))
        await collect(engine.generate([65], delta(max_tokens=1), "r"))


async def test_requests_that_have_not_begun_count_as_waiting() -> None:
    limits = {"max_num_seqs": 2, "max_num_queued_reqs": 3, "max_num_queued_tokens": 60}
    async with async_engine(**limits) as (engine, _):
        for size, reason in ((1, "reqs"), (30, "tokens")):
            promised: list[AsyncIterator[RequestOutput]] = []
            with pytest.raises(QueueFullError, match=reason):
                for _ in range(6):
                    promised.append(engine.generate([65] * size, delta(max_tokens=1), "r"))
            assert len(promised) == (5 if reason == "reqs" else 2)
            # Places are given back by requests that begin and by those that never will.
            await collect(promised.pop())
            await promised.pop().aclose()  # type: ignore[attr-defined]
            promised.clear()
            engine.generate([65] * 70, delta(n=5), "r")


async def test_shutdown_drains_then_aborts() -> None:
    async with async_engine(step=slowly) as (engine, _):
        short = asyncio.create_task(text_of(engine, max_tokens=10, ignore_eos=True))
        endless = asyncio.create_task(collect(engine.generate("a", delta(**ENDLESS), "r")))
        await asyncio.sleep(0.02)
        stopping = asyncio.create_task(engine.shutdown(0.2))
        await asyncio.sleep(0.01)
        with pytest.raises(UnavailableError):
            engine.generate("a", delta(), "r")
        assert await short
        assert (await endless)[-1].outputs[0].finish_reason == "abort"
        await stopping
        assert not engine.is_running


async def test_shutdown_ends_as_soon_as_everyone_is_done() -> None:
    async with async_engine(step=slowly) as (engine, _):
        task = asyncio.create_task(text_of(engine, max_tokens=5, ignore_eos=True))
        await asyncio.sleep(0.01)
        began = time.monotonic()
        await engine.shutdown(30.0)
        assert time.monotonic() - began < 3 and await task


async def test_the_prefix_cache_can_be_reset_when_idle() -> None:
    async with async_engine() as (engine, _):
        params = delta(max_tokens=2, ignore_eos=True)
        prompt = [5] * 40
        first = await collect(engine.generate(prompt, params, "r"))
        again = await collect(engine.generate(prompt, params, "r"))
        assert (first[0].num_cached_tokens, again[0].num_cached_tokens) == (0, 32)
        salted = await collect(engine.generate(prompt, params, "r", cache_salt="s"))
        assert salted[0].num_cached_tokens == 0
        assert await engine.reset_prefix_cache()
        fresh = await collect(engine.generate(prompt, params, "r"))
        assert fresh[0].num_cached_tokens == 0


async def test_metrics_are_zero_again_after_a_storm() -> None:
    async with async_engine(max_num_seqs=8, num_blocks=100) as (engine, _):

        async def one(number: int) -> None:
            params = delta(max_tokens=1 + number % 30, ignore_eos=True, n=1 + number % 2)
            stream = engine.generate([number % 7] * (1 + number % 50), params, str(number))
            leave_after = number % 5
            async for _ in stream:
                leave_after -= 1
                if leave_after == 0:
                    break
            await stream.aclose()  # type: ignore[attr-defined]

        for first in range(0, 300, 50):
            await asyncio.gather(*(one(first + i) for i in range(50)))
        await no_blocks_used(engine)
        assert engine._outputs.num_waiting_tokens == 0
        assert engine._outputs.num_unfinished == 0
        assert not engine._outputs._requests
        stats = await engine.get_stats()
        assert stats.num_free_blocks + stats.num_cached_blocks == stats.num_total_blocks
        registry = engine.registry
        assert registry is not None
        labels = {"model_name": "tiny", "engine": "0"}
        await asyncio.sleep(0.1)
        for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"):
            assert registry.get_sample_value(f"vllm:{name}", labels) == 0
        ended = sum(
            registry.get_sample_value(
                "vllm:request_success_total", {**labels, "finished_reason": reason}
            )
            or 0
            for reason in ("stop", "length", "abort", "error")
        )
        assert ended == 300 + 150


async def test_without_statistics_there_are_no_metrics() -> None:
    async with async_engine(log_stats=False) as (engine, _):
        assert await text_of(engine, max_tokens=2, ignore_eos=True)
        assert engine.registry is None


async def test_bad_words_are_tokenised_once_for_all_prompts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with async_engine() as (engine, _):
        params = delta(max_tokens=2, bad_words=["zz", "qq"])
        await engine.prepare(params)
        assert params.bad_words_token_ids == [[122, 122], [113, 113]]
        monkeypatch.setattr(engine._inputs, "bad_word_ids", None)
        for i in range(3):
            outputs = await collect(engine.generate("say>", params, f"r{i}"))
            assert sum(len(output.outputs[0].token_ids) for output in outputs) == 2
