"""Prompts of models without a cache: whole, in one step each, long ones no later than the next."""

from __future__ import annotations

import random

import pytest

from tests.builders import request, scheduler
from vllm_lite.core.kv_plan import describe_plan, plan_kv_cache
from vllm_lite.core.kv_spec import KVCacheSpec
from vllm_lite.core.request import Request, RequestStatus
from vllm_lite.core.scheduler import Scheduler
from vllm_lite.core.step import ModelRunnerOutput, Pooled, SchedulerOutput
from vllm_lite.pooling_params import PoolingParams

TASK = PoolingParams(task="embed", skip_reading_prefix_cache=True)
NOTHING = KVCacheSpec(())


def pooling_scheduler(**options: object) -> Scheduler:
    whole = {"enable_chunked_prefill": False, "enable_prefix_caching": False}
    return scheduler(1, spec=NOTHING, **whole | options)


def add(s: Scheduler, *lengths: int) -> list[Request]:
    requests = [request(length, task=TASK) for length in lengths]
    for one in requests:
        s.add_request(one)
    return requests


def answer(s: Scheduler, step: SchedulerOutput) -> set[str]:
    """The requests that a step has answered."""
    pooled = {request_id: Pooled(b"abcd", 1) for request_id in step.num_scheduled_tokens}
    outputs = s.update_from_output(step, ModelRunnerOutput({}, pooled=pooled))
    assert all(output.finish_reason == "stop" and output.pooled for output in outputs)
    return {output.request_id for output in outputs}


def test_a_plan_without_layers_has_no_blocks() -> None:
    s = pooling_scheduler()
    plan = plan_kv_cache(s.config, NOTHING, 0)
    assert (plan.groups, plan.total_bytes) == ((), 0)
    assert describe_plan(s.config, plan) == "No KV cache: each prompt is computed in one step"
    assert s.make_stats().kv_cache_usage == 0


def test_a_long_document_lets_short_ones_pass_and_is_next() -> None:
    s = pooling_scheduler(max_num_batched_tokens=128)
    first, long, *short = add(s, 100, 120, 10, 20, 9)
    step = s.schedule()
    # 100 + 120 are too many; 10 fit, then 20 do not, then 9 do.
    assert [*step.num_scheduled_tokens] == [r.request_id for r in (first, short[0], short[2])]
    answer(s, step)
    (late,) = add(s, 5)
    step = s.schedule()
    assert [*step.num_scheduled_tokens] == [r.request_id for r in (long, late)]
    answer(s, step)
    assert answer(s, s.schedule()) == {short[1].request_id}
    assert not s.has_requests() or not s.schedule().num_scheduled_tokens


@pytest.mark.parametrize("in_flight", [1, 2])
@pytest.mark.parametrize("seed", range(20))
def test_every_prompt_is_whole_in_one_step_and_aborts_leave_nothing(
    seed: int, in_flight: int
) -> None:
    rng = random.Random(seed)
    s = pooling_scheduler(max_num_batched_tokens=128, max_num_seqs=rng.choice([3, 8]))
    known: dict[str, Request] = {}
    gone: set[str] = set()
    steps: list[SchedulerOutput] = []
    first: str | None = None
    for turn in range(60):
        if turn < 30:
            known |= {r.request_id: r for r in add(s, *rng.choices([1, 7, 60, 128], k=4))}
        aborted = [i for i in known if i not in gone and rng.random() < 0.03]
        s.finish_requests(aborted, RequestStatus.FINISHED_ABORTED)
        gone.update(aborted)
        step = s.schedule()
        for request_id, count in step.num_scheduled_tokens.items():
            assert count == known[request_id].num_prompt_tokens
        assert step.total_num_scheduled_tokens <= 128
        # What is first in the queue has the whole step; only places may be lacking.
        assert first is None or first in (*gone, *step.num_scheduled_tokens) or len(steps) > 0
        steps.append(step)
        if len(steps) == in_flight:
            gone |= answer(s, steps.pop(0))
        first = s.waiting.peek().request_id if s.waiting else None
    for step in steps:
        gone |= answer(s, step)
    while s.has_requests():
        gone |= answer(s, s.schedule())
    assert gone == known.keys()
    assert not (s.running or s.waiting or s.kv_manager._tables)
