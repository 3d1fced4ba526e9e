"""The scheduler: contents of a step, order of requests, and outputs."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

import pytest

from tests.builders import alike_layers, request, scheduler
from tests.fakes import ScriptedExecutor, scripted_tokens
from vllm_lite.core.kv_plan import plan_kv_cache
from vllm_lite.core.request import Request, RequestStatus
from vllm_lite.core.scheduler import Scheduler
from vllm_lite.core.step import (
    EngineCoreOutput,
    ModelRunnerOutput,
    SchedulerOutput,
    TokenLogprobs,
)
from vllm_lite.core.step_builder import StepBudget, StepBuilder
from vllm_lite.errors import RequestError

ABORTED = RequestStatus.FINISHED_ABORTED


def add(s: Scheduler, *requests: Request) -> None:
    for r in requests:
        s.add_request(r)


def answer(s: Scheduler, step: SchedulerOutput, token: int = 9) -> list[EngineCoreOutput]:
    """Let every request that is due sample `token`."""
    due = {i: [token] for i, count in step.num_verified.items() if count and i in s.requests}
    return s.update_from_output(step, ModelRunnerOutput(due))


def advance(s: Scheduler, token: int = 9) -> dict[str, int]:
    """One step; how many tokens of whom."""
    step = s.schedule()
    answer(s, step, token)
    return step.num_scheduled_tokens


def executor_of(s: Scheduler, **options: Any) -> ScriptedExecutor:
    executor = ScriptedExecutor(s.config, **options)
    executor.initialize_cache(plan_kv_cache(s.config, executor.kv_cache_spec(), 0))
    return executor


def generate(s: Scheduler, requests: Iterable[Request], **options: Any) -> list[list[int]]:
    requests = list(requests)
    executor = executor_of(s, **options)
    add(s, *requests)
    while s.has_requests():
        step = s.schedule()
        s.update_from_output(step, executor.execute_model(step))
    return [r.output_token_ids for r in requests]


def test_decoding_requests_and_a_prompt_share_a_step() -> None:
    s = scheduler(num_blocks=40, max_num_batched_tokens=16)
    a, b = request(4), request(40)
    add(s, a)
    assert advance(s) == {a.request_id: 4}
    add(s, b)
    assert advance(s) == {a.request_id: 1, b.request_id: 15}
    assert advance(s) == {a.request_id: 1, b.request_id: 15}
    assert advance(s) == {a.request_id: 1, b.request_id: 10}
    assert advance(s) == {a.request_id: 1, b.request_id: 1}


def test_a_partial_prompt_samples_nothing() -> None:
    s = scheduler(max_num_batched_tokens=8)
    add(s, request(20))
    outputs = [answer(s, s.schedule()) for _ in range(3)]
    assert [len(o) for o in outputs] == [0, 0, 1]


def test_long_prompts_are_cut_at_the_threshold() -> None:
    s = scheduler(num_blocks=40, long_prefill_token_threshold=10)
    a, b = request(25), request(5)
    add(s, a, b)
    assert advance(s) == {a.request_id: 10, b.request_id: 5}
    assert advance(s) == {a.request_id: 10, b.request_id: 1}


def test_without_chunking_a_prompt_waits_until_it_fits_whole() -> None:
    s = scheduler(
        num_blocks=40,
        enable_chunked_prefill=False,
        enable_prefix_caching=False,
        long_prefill_token_threshold=10,
    )
    a, b, c = request(100), request(60), request(5)
    add(s, a, b, c)
    assert advance(s) == {a.request_id: 100}
    assert advance(s) == {a.request_id: 1, b.request_id: 60, c.request_id: 5}


def test_max_num_seqs_bounds_running_requests() -> None:
    s = scheduler(max_num_seqs=2)
    add(s, *(request(2) for _ in range(5)))
    assert len(advance(s)) == 2
    assert (s.make_stats().num_running, s.make_stats().num_waiting) == (2, 3)


def test_partial_prefills_are_counted_and_short_prompts_pass_long_ones() -> None:
    s = scheduler(
        num_blocks=80,
        long_prefill_token_threshold=10,
        max_num_partial_prefills=2,
        max_long_partial_prefills=1,
    )
    long, also_long, short = request(30), request(31), request(6)
    add(s, long, also_long, short)
    assert advance(s) == {long.request_id: 10, short.request_id: 6}
    assert advance(s) == {long.request_id: 10, short.request_id: 1}
    # Its last part: the other may begin beside it.
    expected = {long.request_id: 10, short.request_id: 1, also_long.request_id: 10}
    assert advance(s) == expected


def test_as_many_long_prompts_run_as_are_allowed() -> None:
    s = scheduler(
        num_blocks=80,
        long_prefill_token_threshold=10,
        max_num_partial_prefills=2,
        max_long_partial_prefills=2,
    )
    requests = [request(30, cache_salt=str(i)) for i in range(3)]
    add(s, *requests)
    assert list(advance(s).values()) == [10, 10]


def test_fcfs_preempts_the_last_and_takes_it_back_first() -> None:
    s = scheduler(num_blocks=18, max_model_len=128, enable_prefix_caching=False)
    a, b = request(64, max_tokens=60), request(64, max_tokens=60)
    later = request(1, max_tokens=2)
    add(s, a, b)
    advance(s)
    add(s, later)  # nothing is free: it waits
    while not b.num_preemptions:
        step = s.schedule()
        answer(s, step)
    assert step.preempted_request_ids == [b.request_id]
    assert not step.new_requests, "no one is admitted while memory is short"
    assert s.waiting.peek() is b and b.num_computed_tokens == 0
    s.finish_requests(a.request_id, ABORTED)
    step = s.schedule()
    assert [new.request_id for new in step.new_requests] == [b.request_id, later.request_id]
    assert step.new_requests[0].output_token_ids == b.output_token_ids != []


def test_priority_admits_and_preempts_by_priority() -> None:
    s = scheduler(num_blocks=18, scheduling_policy="priority", enable_prefix_caching=False)
    relaxed, urgent = request(64, priority=5, max_tokens=60), request(64, priority=1, max_tokens=60)
    add(s, relaxed)
    advance(s)
    add(s, urgent)
    while not s.make_stats().num_preemptions:
        advance(s)
    assert (relaxed.num_preemptions, urgent.num_preemptions) == (1, 0)
    assert s.running == [urgent]


def test_a_victim_that_the_step_already_holds_is_taken_out_of_it() -> None:
    s = scheduler(num_blocks=19, scheduling_policy="priority", enable_prefix_caching=False)
    # The relaxed one comes first in the step, and the urgent one runs short after it.
    relaxed, urgent, small = request(60, priority=5), request(71, priority=1), request(3)
    add(s, relaxed)
    advance(s)
    add(s, urgent)
    advance(s)
    add(s, small)
    advance(s)
    assert s.kv_manager.pool.num_unused == 0
    step = s.schedule()
    assert step.preempted_request_ids == [relaxed.request_id]
    assert step.num_scheduled_tokens == {urgent.request_id: 1, small.request_id: 1}
    assert step.num_verified.keys() == step.num_scheduled_tokens.keys() >= step.new_block_ids.keys()
    assert step.total_num_scheduled_tokens == 2


def test_a_victim_gives_its_share_of_the_step_back() -> None:
    step, victim = StepBuilder(StepBudget(tokens=10, prompts=6, seqs=4, states=4)), request(5)
    step.continue_request(victim, 3, 0, [])
    assert (step.budget.tokens, step.budget.prompts) == (7, 3)
    step.preempt_request(victim)
    assert (step.budget.tokens, step.budget.prompts) == (10, 6) and step.has_preempted


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
@pytest.mark.parametrize("window", [None, 20])
@pytest.mark.parametrize("caching", [True, False])
def test_preemption_never_changes_tokens(policy: str, window: int | None, caching: bool) -> None:
    spec = alike_layers(1, 1, 8, "float32", sliding_window=window)
    # Behind its window a request grows no more: it is preempted on its way there.
    longest, num_preemptions = 5 if window else 50, 0
    for seed in range(6):
        dice = random.Random(seed)
        prompts = [[dice.randrange(2)] * 8 + [3] * dice.randrange(1, longest) for _ in range(12)]
        s = scheduler(
            num_blocks=(9 if window else 17) + seed,
            spec=spec,
            scheduling_policy=policy,
            enable_prefix_caching=caching,
            max_num_batched_tokens=dice.choice([8, 16, 24]),
        )
        requests = [request(p, priority=dice.randrange(3), max_tokens=60) for p in prompts]
        tokens = generate(s, requests, spec=spec)
        assert tokens == [scripted_tokens(p, 60, windows=(window,)) for p in prompts]
        stats = s.make_stats()
        assert stats.num_used_blocks == 0
        assert (stats.prefix_cache_hits > 0) == caching
        num_preemptions += stats.num_preemptions
    assert num_preemptions > 10


def test_a_shared_prefix_is_computed_once_and_counted() -> None:
    s = scheduler(num_blocks=40)
    prompt = list(range(20))
    first, second = request(prompt), request([*prompt, 5])
    add(s, first)
    advance(s)
    add(s, second)
    step = s.schedule()
    assert step.num_scheduled_tokens[second.request_id] == 21 - 16
    assert step.new_requests[0].block_ids[0][:2] == s.kv_manager.block_ids(first)[0][:2]
    output = answer(s, step)[-1]
    assert (output.num_cached_tokens, output.scheduled_time is not None) == (16, True)
    assert answer(s, s.schedule())[-1].num_cached_tokens is None
    stats = s.make_stats()
    assert (stats.prefix_cache_queries, stats.prefix_cache_hits) == (41, 16)


def test_requests_of_one_step_do_not_hit_uncomputed_blocks() -> None:
    s = scheduler(num_blocks=40)
    add(s, request(20), request(20))
    assert list(advance(s).values()) == [20, 20]


def test_a_wholly_cached_prompt_computes_its_last_block_again() -> None:
    s = scheduler(num_blocks=40)
    add(s, request(16))
    advance(s)
    again = request(16)
    add(s, again)
    assert advance(s)[again.request_id] == 8


def test_generated_tokens_stay_cached() -> None:
    s = scheduler(num_blocks=40)
    (tokens,) = generate(s, [request(8, max_tokens=17)])
    turn = request([*range(1, 9), *tokens, 1])
    add(s, turn)
    assert advance(s)[turn.request_id] == 26 - 24


def test_a_salt_and_a_wish_for_prompt_logprobs_keep_from_the_cache() -> None:
    s = scheduler(num_blocks=40)
    add(s, request(20))
    advance(s)
    salted, curious = request(20, cache_salt="x"), request(20, prompt_logprobs=1)
    add(s, salted, curious)
    counts = advance(s)
    assert counts[salted.request_id] == counts[curious.request_id] == 20


def test_reset_forgets_prefixes_once_nothing_runs() -> None:
    s = scheduler(num_blocks=40)
    r = request(20)
    add(s, r)
    advance(s)
    assert not s.reset_prefix_cache()
    s.finish_requests(r.request_id, ABORTED)
    assert s.make_stats().num_cached_blocks == 2
    assert s.reset_prefix_cache()
    assert s.make_stats().num_cached_blocks == 0


def test_abort_frees_at_once_and_reaches_workers_in_the_next_step() -> None:
    s = scheduler()
    running, waiting = request(20), request(20)
    add(s, running)
    advance(s)
    add(s, waiting)
    ids = [running.request_id, waiting.request_id, running.request_id, "nobody"]
    s.finish_requests(ids, ABORTED)
    assert s.make_stats().num_used_blocks == 0
    assert s.has_requests() and not s.requests
    step = s.schedule()
    assert step.finished_request_ids == [running.request_id]
    assert step.total_num_scheduled_tokens == 0
    assert answer(s, step) == [] and not s.has_requests()


def test_an_id_that_comes_again_during_a_step_is_another_request() -> None:
    s = scheduler()
    executor = executor_of(s)
    first, second = request(5, request_id="x"), request(9, request_id="x")
    add(s, first)
    step = s.schedule()
    result = executor.execute_model(step)
    s.finish_requests("x", ABORTED)
    add(s, second)
    assert s.update_from_output(step, result) == []
    assert second.num_computed_tokens == 0
    step = s.schedule()
    assert (step.finished_request_ids, step.num_scheduled_tokens) == (["x"], {"x": 9})
    s.update_from_output(step, executor.execute_model(step))
    assert second.output_token_ids == scripted_tokens(second.prompt_token_ids, 1)


def test_a_request_fails_alone() -> None:
    s = scheduler()
    executor = executor_of(s)
    good, bad = request(5), request(6)
    add(s, good, bad)
    executor.fail_next = {bad.request_id: "no such token"}
    step = s.schedule()
    outputs = {o.request_id: o for o in s.update_from_output(step, executor.execute_model(step))}
    assert outputs[bad.request_id].finish_reason == "error"
    assert outputs[bad.request_id].stop_reason == "no such token"
    assert outputs[good.request_id].finish_reason is None
    assert s.running == [good]


def test_blocks_of_a_failed_request_are_never_hit() -> None:
    """Its cache may hold what is no number; a prompt's first chunk shows no logits."""
    s = scheduler(max_num_batched_tokens=16, max_num_seqs=4)
    bad = request(40, request_id="bad")
    add(s, bad)
    for _ in range(2):
        advance(s)
    step = s.schedule()
    s.update_from_output(step, ModelRunnerOutput({}, errors={"bad": "unsound"}))
    assert bad.status is RequestStatus.FINISHED_ERROR
    assert s.make_stats().num_cached_blocks == 0
    again = request(40)
    add(s, again)
    advance(s)
    assert again.num_cached_tokens == 0


def test_a_prefix_survives_those_that_ban_every_token_after_it() -> None:
    s = scheduler()
    add(s, request(30, max_tokens=1))
    advance(s)
    num_cached = s.make_stats().num_cached_blocks
    assert num_cached
    for options, left in (({"allowed_token_ids": [5]}, num_cached), ({}, 0)):
        r = request(30, **options)
        add(s, r)
        errors = {r.request_id: "no usable logits"}
        result = ModelRunnerOutput({}, errors=errors, stuck=[*errors])
        (output,) = s.update_from_output(s.schedule(), result)
        assert (output.stop_reason == errors[r.request_id]) is (not options)
        assert s.make_stats().num_cached_blocks == left


def test_min_tokens_bans_an_end_that_is_ignored_after_it() -> None:
    s = scheduler()
    add(s, request(5, eos=(3,), ignore_eos=True, min_tokens=2))
    (new,) = s.schedule().new_requests
    assert new.eos_token_ids == (3,)


def test_a_step_that_throws_ends_its_requests_and_no_others() -> None:
    s = scheduler(max_num_seqs=1)
    a, b = request(5), request(6)
    add(s, a, b)
    outputs = s.fail_step(s.schedule(), "out of luck")
    assert [(o.request_id, o.finish_reason, o.stop_reason) for o in outputs] == [
        (a.request_id, "error", "out of luck")
    ]
    assert s.make_stats().num_used_blocks == 0
    assert advance(s) == {b.request_id: 6}


def test_a_request_that_gets_no_token_does_not_hang() -> None:
    s = scheduler()
    add(s, request(5))
    (output,) = s.update_from_output(s.schedule(), ModelRunnerOutput({}))
    assert output.finish_reason == "error" and not s.running


def test_an_id_in_use_is_refused() -> None:
    s = scheduler()
    add(s, request(5, request_id="x"))
    with pytest.raises(RequestError, match="in use"):
        add(s, request(5, request_id="x"))


def test_the_context_bounds_generation() -> None:
    s = scheduler(max_model_len=24)
    r = request(20, max_tokens=None)
    assert len(generate(s, [r])[0]) == 4
    assert r.status is RequestStatus.FINISHED_LENGTH_CAPPED


def test_a_window_gives_blocks_back_while_it_runs() -> None:
    spec = alike_layers(1, 1, 8, "float32", sliding_window=9)
    s = scheduler(num_blocks=20, spec=spec, max_num_batched_tokens=16)
    r = request(100, max_tokens=20)
    add(s, r)
    most = 0
    while s.requests:
        advance(s)
        most = max(most, s.make_stats().num_used_blocks)
    assert most <= 4


def test_who_was_preempted_by_a_step_that_fails_may_be_back_already() -> None:
    s = scheduler(enable_prefix_caching=False)
    executor = executor_of(s)
    leaves, stays, victim = requests = [request(n, max_tokens=9) for n in (39, 63, 23)]
    add(s, *requests)
    for _ in range(2):
        step = s.schedule()
        s.update_from_output(step, executor.execute_model(step))
    failing = s.schedule()
    assert failing.preempted_request_ids == [victim.request_id]
    s.finish_requests(leaves.request_id, ABORTED)
    ahead = s.schedule()
    assert [new.request_id for new in ahead.new_requests] == [victim.request_id]
    executor.execute_model(failing)  # and its answer is lost
    (failed,) = s.fail_step(failing, "lost")
    assert failed.request_id == stays.request_id
    s.update_from_output(ahead, executor.execute_model(ahead))
    while s.has_requests():
        step = s.schedule()
        s.update_from_output(step, executor.execute_model(step))
    assert victim.output_token_ids == scripted_tokens(victim.prompt_token_ids, 9)
    assert executor.num_known_requests == 0


def test_a_list_of_tokens_ends_where_the_request_does() -> None:
    s = scheduler()
    r = request(5, stop_token_ids=[8], max_tokens=10)
    add(s, r)
    step = s.schedule()
    entries = [TokenLogprobs([token], [-1.0], 1) for token in (9, 8, 7)]
    answer = ModelRunnerOutput({r.request_id: [9, 8, 7]}, {r.request_id: entries})
    (output,) = s.update_from_output(step, answer)
    assert output.new_token_ids == [9, 8] == r.output_token_ids
    assert output.new_logprobs == entries[:2]
    assert (output.finish_reason, output.stop_reason) == ("stop", 8)
