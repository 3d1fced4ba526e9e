"""States are kept where prefixes end, and slots run short without anybody standing still."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.builders import TINY_SPEC, core_config, request
from tests.fakes import ScriptedExecutor
from vllm_lite.core.kv_plan import describe_plan, plan_kv_cache
from vllm_lite.core.kv_spec import KVCacheSpec, StateCacheSpec
from vllm_lite.core.memory_budget import DeviceMemory, MemoryUse, cache_bytes
from vllm_lite.core.request import Request
from vllm_lite.core.scheduler import Scheduler
from vllm_lite.core.state_pool import StatePool
from vllm_lite.errors import UsageError

SIZE = 8
STATE = StateCacheSpec(((3, 16), (2, 4, 4)))
SPEC = KVCacheSpec((), (STATE,))


class Engine:
    """A scheduler and a scripted model that has nothing but states."""

    def __init__(self, num_states: int, interval: int | None = None, **options: Any) -> None:
        config = core_config(**{"max_model_len": 512} | options)
        plan = plan_kv_cache(config, SPEC, 1 << 30)
        plan = replace(plan, num_states=num_states, state_interval=interval)
        self.scheduler = Scheduler(config, plan)
        self.executor = ScriptedExecutor(spec=SPEC)
        self.executor.initialize_cache(plan)

    def run(self, *requests: Request) -> None:
        for r in requests:
            self.scheduler.add_request(r)
        while self.scheduler.has_requests():
            step = self.scheduler.schedule()
            self.scheduler.update_from_output(step, self.executor.execute_model(step))

    def hit(self, prompt: list[int]) -> int | None:
        r = request(prompt, max_tokens=1)
        self.run(r)
        return r.num_cached_tokens


def test_snapshots_are_kept_at_the_end_of_prompt_and_answer() -> None:
    engine = Engine(20)
    prompt = list(range(100, 145))
    first = request(prompt, max_tokens=30)
    engine.run(first)
    assert engine.hit(prompt) == 40
    assert engine.hit([*prompt[:44], 7, 7, 7]) == 40
    assert engine.hit(first.token_ids + [9] * 20) == 72  # of 45 + 29 tokens that were computed
    # Within the prompt nothing was kept.
    assert engine.hit(prompt[:39] + [7] * 20) == 0


def test_a_prompt_s_states_are_kept_as_often_as_asked() -> None:
    engine = Engine(20, interval=16, max_num_batched_tokens=24)
    prompt = list(range(100, 170))
    engine.run(request(prompt, max_tokens=1))
    for length, reached in ((15, 0), (17, 16), (40, 32), (63, 48), (69, 64)):
        assert engine.hit([*prompt[:length], 7, 7]) == reached


def test_without_prefix_caching_no_state_is_kept() -> None:
    engine = Engine(4, enable_prefix_caching=False)
    prompt = list(range(100, 145))
    assert engine.hit(prompt) == engine.hit(prompt) == 0


def test_a_text_s_last_state_outlives_those_before_it() -> None:
    engine = Engine(3)
    long = request(list(range(100, 120)), max_tokens=100)
    engine.run(long)
    assert engine.hit([*long.token_ids, 1, 2]) == 112
    states = engine.scheduler.kv_manager.states
    assert isinstance(states, StatePool) and states.usage == 0


def test_who_gets_no_slot_waits() -> None:
    engine = Engine(2, max_num_seqs=8)
    requests = [request(list(range(i, i + 20)), max_tokens=20) for i in range(6)]
    for r in requests:
        engine.scheduler.add_request(r)
    step = engine.scheduler.schedule()
    assert len(step.num_scheduled_tokens) == 2
    engine.scheduler.update_from_output(step, engine.executor.execute_model(step))
    engine.run()
    assert all(r.num_output_tokens == 20 and not r.num_preemptions for r in requests)


def test_the_plan_names_the_bytes_of_a_request_s_state() -> None:
    assert STATE.num_bytes == 4 * (3 * 16 + 2 * 4 * 4)
    config = core_config(max_num_seqs=4, max_model_len=64)
    plan = plan_kv_cache(config, SPEC, 1 << 30)
    assert (plan.num_blocks, plan.num_states) == (1, 4 * 3)
    assert plan.total_bytes == 12 * STATE.num_bytes
    big = KVCacheSpec((), (StateCacheSpec(((3, 131080), (2, 1 << 16, 4))),))
    line = describe_plan(config, plan_kv_cache(config, big, 1 << 30))
    assert line == (
        "KV cache: 0.04 GiB, 12 states of 3.50 MiB, 10.50 MiB a request with its 2 snapshots, "
        "4.00x concurrency at 64 tokens per request"
    )
    often = replace(
        config,
        facts=replace(config.facts, architecture="MambaForCausalLM"),
        cache=replace(config.cache, mamba_block_size=16),
    )
    line = describe_plan(often, plan_kv_cache(often, big, 1 << 30))
    assert " with its 6 snapshots, 4.00x " in line
    alone = core_config(max_num_seqs=4, max_model_len=64, enable_prefix_caching=False)
    line = describe_plan(alone, plan_kv_cache(alone, big, 1 << 30))
    assert "4 states of 3.50 MiB, 3.50 MiB a request, 4.00x " in line
    mixed = replace(TINY_SPEC, states=SPEC.states)
    plan = plan_kv_cache(config, mixed, memory := 20 * STATE.num_bytes)
    assert 2 <= plan.num_states <= 10 and plan.total_bytes <= memory
    line = describe_plan(config, plan)
    assert "tokens, " in line and " states of " in line and " a request with its 2 " in line


@pytest.mark.parametrize("override", [None, 1])
def test_too_few_states_are_an_error_whose_numbers_work(override: int | None) -> None:
    config = core_config(num_gpu_blocks_override=override)
    with pytest.raises(UsageError, match=r"takes 2 states \(0.000 GiB\), but"):
        plan_kv_cache(config, SPEC, 2 * STATE.num_bytes - 1)
    assert plan_kv_cache(core_config(), SPEC, 2 * STATE.num_bytes).num_states == 2
    use, start = MemoryUse(0, 0, 0, 0), DeviceMemory(1 << 20, 1 << 20, 0, 0)
    assert cache_bytes(core_config(gpu_memory_utilization=1.0), SPEC, use, start) == 1 << 20
