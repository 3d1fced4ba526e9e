"""The scheduler's less usual options: which requests begin, and with how many tokens."""

from __future__ import annotations

import pytest

from tests.builders import core_config, request, scheduler
from tests.unit.core.test_scheduler import add, advance, generate
from vllm_lite.errors import UsageError


def test_fewer_may_run_than_a_step_can_hold() -> None:
    s = scheduler(max_num_seqs=4, max_num_active_seqs=2)
    add(s, *(request(4) for _ in range(3)))
    assert len(advance(s)) == 2
    assert s.make_stats().num_waiting == 1
    with pytest.raises(UsageError, match="--max-num-active-seqs 9 is more than --max-num-seqs 8"):
        core_config(max_num_active_seqs=9)


def test_step_schedules_fewer_tokens_than_it_can_hold() -> None:
    s = scheduler(num_blocks=40, max_num_batched_tokens=64, max_num_scheduled_tokens=10)
    a = request(24)
    add(s, a)
    assert [advance(s)[a.request_id] for _ in range(3)] == [10, 10, 4]
    with pytest.raises(UsageError, match="--max-num-scheduled-tokens 10 is less than"):
        core_config(max_num_scheduled_tokens=10, enable_chunked_prefill=False)


def test_long_prompt_limit_grows_when_few_share_a_step() -> None:
    options = {"max_num_batched_tokens": 32, "long_prefill_token_threshold": 4}
    s = scheduler(num_blocks=40, **options, long_prefill_token_threshold_adaptive=True)
    a, b = request(40), request(list(range(41, 81)))
    add(s, a)
    assert advance(s) == {a.request_id: 32}
    add(s, b)
    assert advance(s) == {a.request_id: 8, b.request_id: 16}
    plain = scheduler(num_blocks=40, **options)
    c = request(40)
    add(plain, c)
    assert advance(plain) == {c.request_id: 4}


def test_a_prompt_may_begin_before_all_of_it_fits() -> None:
    def begun(reserve: bool) -> int:
        s = scheduler(
            num_blocks=9,
            max_num_batched_tokens=32,
            scheduler_reserve_full_isl=reserve,
            max_model_len=64,
        )
        add(s, request(24), request(list(range(41, 89))))
        return max(len(advance(s)) for _ in range(3))

    assert (begun(True), begun(False)) == (1, 2)


def test_blocks_below_the_watermark_are_kept_while_others_run() -> None:
    s = scheduler(num_blocks=9, max_model_len=64, watermark=0.5)
    a, b = request(16), request(24)
    add(s, a, b)
    assert advance(s) == {a.request_id: 16}
    # Alone, a request may have all there is.
    alone = scheduler(num_blocks=9, max_model_len=64, watermark=0.9)
    add(alone, request(60))
    assert len(advance(alone)) == 1


@pytest.mark.parametrize(
    ("options", "cached"),
    [
        ({"block_size": 8}, 40),
        ({"block_size": 16}, 32),
        ({"block_size": 64}, 0),
        ({"enable_prefix_caching": False}, 0),
    ],
)
def test_a_prompt_is_cached_in_whole_blocks_or_not_at_all(
    options: dict[str, int], cached: int
) -> None:
    s = scheduler(num_blocks=40, **options)
    add(s, request(45, max_tokens=1))
    advance(s)
    again = request(45)
    add(s, again)
    assert advance(s) == {again.request_id: 45 - cached}


@pytest.mark.parametrize(
    "options",
    [
        {"scheduler_reserve_full_isl": False},
        {"watermark": 0.5},
        {"max_num_scheduled_tokens": 3},
        {"max_num_active_seqs": 1},
        {"long_prefill_token_threshold": 2, "long_prefill_token_threshold_adaptive": True},
    ],
)
def test_none_of_them_changes_tokens(options: dict[str, object]) -> None:
    prompts = [5, 24, 40, 9]

    def tokens(num_blocks: int, **given: object) -> list[list[int]]:
        s = scheduler(num_blocks=num_blocks, max_model_len=64, **given)
        return generate(s, [request(n, max_tokens=10) for n in prompts])

    assert tokens(9, **options) == tokens(60)
