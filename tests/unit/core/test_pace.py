"""Prompt tokens of a step by a target, from the time that earlier steps took."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from vllm_lite import SamplingParams
from vllm_lite.config.scheduler import SchedulerConfig
from vllm_lite.core.pace import UNLIMITED, StepPace
from vllm_lite.core.request import Request


def linear(decoding: int, prompts: int) -> float:
    return 0.010 + 0.0002 * decoding + 0.0005 * prompts


def padded(decoding: int, prompts: int) -> float:
    """Few prompt tokens cost more each."""
    return 0.020 + 0.001 * decoding + 0.0005 * (-(-prompts // 64) * 64)


def learned(cost: Callable[[int, int], float], target: float | None = None) -> StepPace:
    pace = StepPace(SchedulerConfig(scheduler_target_itl_ms=target))
    for prompts in (256, 0, 16, 32, 64, 128, 0):
        for decoding in (0, 1, 8, 32):
            if decoding or prompts:
                for _ in range(20):
                    pace.learn(decoding, prompts, cost(decoding, prompts))
    return pace


@pytest.mark.parametrize("cost", [linear, padded])
@pytest.mark.parametrize("decoding", [1, 8, 32])
def test_a_step_takes_at_most_the_automatic_target(
    cost: Callable[[int, int], float], decoding: int
) -> None:
    alone = cost(decoding, 0)
    tokens = learned(cost).tokens_beside(decoding)
    assert cost(decoding, tokens) <= 2.2 * alone + 0.0005 * 64 * (cost is padded)


@pytest.mark.parametrize("target", [20.0, 40.0, 100.0])
def test_a_step_takes_at_most_the_given_target(target: float) -> None:
    tokens = learned(linear, target).tokens_beside(8)
    assert 0.7 * target <= 1e3 * linear(8, tokens) <= target


def test_prompts_advance_whatever_the_target() -> None:
    assert learned(linear, 1.0).tokens_beside(8) == 16


def requests(*missing: int) -> list[Request]:
    return [Request(str(i), [0] * count, SamplingParams()) for i, count in enumerate(missing)]


def test_many_waiting_prompts_make_the_automatic_steps_longer() -> None:
    running, waiting = requests(1, 1, 1), requests(8000, 8000)
    assert learned(linear).prompt_tokens(running, running + waiting) == 1000
    assert learned(linear, 20.0).prompt_tokens(running, running + waiting) < 32


def test_automatic_steps_stay_long_until_the_waiting_prompts_are_done() -> None:
    pace, running = learned(linear), requests(1, 1, 1)
    assert pace.prompt_tokens(running, running + requests(16000)) == 1000
    assert pace.prompt_tokens(running, running + requests(800)) == 1000
    assert pace.prompt_tokens(running, running) < 100
    assert pace.prompt_tokens(running, running + requests(8000)) == 500
    pace.prompt_tokens([], requests(8000))  # and nobody waits for a token
    assert pace.prompt_tokens(running, running + requests(800)) < 100


def test_nothing_is_limited_before_it_is_known_or_while_nobody_waits_for_a_token() -> None:
    pace, running = StepPace(SchedulerConfig()), requests(1, 300)
    assert pace.prompt_tokens(running, running) == UNLIMITED
    pace.learn(0, 256, 0.2)
    assert pace.prompt_tokens(running, running) == UNLIMITED
    alone = requests(300, 20)
    assert learned(linear).prompt_tokens(alone, alone) == UNLIMITED


def test_zero_turns_it_off() -> None:
    running = requests(1, 300)
    assert learned(linear).prompt_tokens(running, running) < 300
    assert learned(linear, 0).prompt_tokens(running, running) == UNLIMITED


def test_the_estimate_follows_a_machine_that_becomes_slower() -> None:
    pace = learned(linear)
    before = pace.tokens_beside(8)
    for prompts in (0, 16, 32, 64):
        for _ in range(30):
            pace.learn(8, prompts, linear(8, 0) + 0.001 * prompts)
    assert pace.tokens_beside(8) < before


@pytest.mark.parametrize("target", [None, 5.0])
def test_prompts_that_seem_to_cost_nothing_are_not_limited(target: float | None) -> None:
    pace = StepPace(SchedulerConfig(scheduler_target_itl_ms=target))
    pace.learn(4, 0, 0.004)
    pace.learn(4, 64, 0.003)
    assert pace.tokens_beside(4) > 4096


def test_steps_that_take_no_time_are_no_error() -> None:
    pace = StepPace(SchedulerConfig())
    pace.learn(4, 0, 0.0)
    pace.learn(4, 64, 0.0)
    assert pace.tokens_beside(4) == 16
