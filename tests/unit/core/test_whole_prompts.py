"""Prompts of models without a cache: whole, in one step each, long ones no later than the next."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.builders import core_config, request, scheduler
from vllm_lite.config.pooling import PoolingFacts
from vllm_lite.core.kv_plan import describe_plan, plan_kv_cache
from vllm_lite.core.kv_spec import KVCacheSpec
from vllm_lite.core.request import Request, RequestStatus
from vllm_lite.core.scheduler import Scheduler
from vllm_lite.core.step import ModelRunnerOutput, Pooled, SchedulerOutput
from vllm_lite.pooling_params import PoolingParams

TASK = PoolingParams(task="embed", skip_reading_prefix_cache=True)
NOTHING = KVCacheSpec(())
WHOLE = {"enable_chunked_prefill": False, "enable_prefix_caching": False}
# A step holds one long document, or more than a hundred short queries.
STEP, LONG, MANY = 8192, 8192, 100


def pooling_scheduler(**options: object) -> Scheduler:
    return scheduler(1, spec=NOTHING, **WHOLE | options)


def encoder_scheduler(**options: object) -> Scheduler:
    """The same, of a model whose tokens see later ones: short and long prompts take turns."""
    config = core_config(num_gpu_blocks_override=1, **WHOLE | options)
    facts = replace(config.facts, pooling=PoolingFacts(is_causal=False))
    return Scheduler(replace(config, facts=facts), plan_kv_cache(config, NOTHING, 0))


def wide_scheduler() -> Scheduler:
    sizes = {"max_model_len": LONG, "max_num_batched_tokens": STEP, "max_num_seqs": 2 * MANY}
    return encoder_scheduler(**sizes)


def add_short(s: Scheduler, rng: random.Random) -> set[str]:
    """A hundred short queries, which fit into a step."""
    return {r.request_id for r in add(s, *(rng.randint(1, 80) for _ in range(MANY)))}


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


@pytest.mark.parametrize("num_long", [1, 2, 7, 130])
@pytest.mark.parametrize("seed", range(3))
def test_long_documents_delay_a_hundred_short_queries_by_one_step(num_long: int, seed: int) -> None:
    rng, s = random.Random(seed), wide_scheduler()
    add(s, *[LONG] * num_long)
    # Some documents are done before the queries come, and more come with them.
    for _ in range(rng.randrange(num_long)):
        answer(s, s.schedule())
    add(s, *[LONG] * rng.randrange(3))
    for _ in range(3):
        queries = add_short(s, rng)
        add(s, LONG, rng.randrange(STEP // 4, LONG))
        queries -= answer(s, s.schedule())
        queries -= answer(s, s.schedule())
        assert not queries


@pytest.mark.parametrize("in_flight", [1, 2])
def test_short_queries_without_end_leave_long_documents_every_second_step(in_flight: int) -> None:
    rng, s = random.Random(0), wide_scheduler()
    documents = [r.request_id for r in add(s, *[LONG] * 8)]
    steps: list[SchedulerOutput] = []
    order: list[str] = []
    # Waiting queries grow; some leave.
    for turn in range(20):
        leaves = rng.sample(sorted(add_short(s, rng)), 5)
        s.finish_requests(leaves, RequestStatus.FINISHED_ABORTED)
        steps.append(s.schedule())
        order += [i for i in steps[-1].num_scheduled_tokens if i in documents]
        assert len(order) >= min(turn // 2 - 1, len(documents))
        if len(steps) == in_flight:
            answer(s, steps.pop(0))
    assert order == documents


def test_documents_that_leave_cost_those_that_stay_nothing() -> None:
    rng, s = random.Random(0), wide_scheduler()
    for _ in range(20):
        gone = add(s, LONG, LONG)
        s.finish_requests([r.request_id for r in gone], RequestStatus.FINISHED_ABORTED)
    add_short(s, rng)
    (stays,) = add(s, LONG)
    planned = [s.schedule().num_scheduled_tokens for _ in range(2)]
    assert stays.request_id in planned[1]


@pytest.mark.parametrize("make", [pooling_scheduler, encoder_scheduler])
@pytest.mark.parametrize("in_flight", [1, 2])
@pytest.mark.parametrize("seed", range(20))
def test_every_prompt_is_whole_in_one_step_and_aborts_leave_nothing(
    seed: int, in_flight: int, make: Callable[..., Scheduler]
) -> None:
    rng = random.Random(seed)
    s = make(max_num_batched_tokens=128, max_num_seqs=rng.choice([3, 8]))
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
        # What is first in the queue has the whole step; only places may be lacking. In turns, a
        # prompt of the other kind may come between.
        assert first is None or first in (*gone, *step.num_scheduled_tokens) or len(steps) > 0
        steps.append(step)
        if len(steps) == in_flight:
            gone |= answer(s, steps.pop(0))
        is_in_order = s.waiting and make is pooling_scheduler
        first = s.waiting.peek().request_id if is_in_order else None
    for step in steps:
        gone |= answer(s, step)
    while s.has_requests():
        gone |= answer(s, s.schedule())
    assert gone == known.keys()
    assert not (s.running or s.waiting or s.kv_manager._tables)
