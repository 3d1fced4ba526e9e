"""A snapshot agrees with the books, costs nothing unasked, and is taken at most twice a second."""

from __future__ import annotations

import time

import pytest

from tests.builders import message
from tests.unit.engine.engines import Scripted, engine_config
from vllm_lite.engine.core import observe
from vllm_lite.engine.core.engine_core import EngineCore
from vllm_lite.engine.link.messages import CallResult, GetSnapshot


def busy_core(num_blocks: int = 200) -> EngineCore:
    """One request has left cached blocks, two run and one waits."""
    core = EngineCore(engine_config(num_blocks=num_blocks, max_num_seqs=2), Scripted())
    now = time.monotonic()
    core.add_requests([message(30, request_id="gone", max_tokens=1, arrival_time=now)])
    core.step()
    core.step()
    later = [message(20 + i, request_id=f"r{i}", max_tokens=50, arrival_time=now) for i in range(3)]
    core.add_requests(later)
    for _ in range(4):
        core.step()
    return core


def test_snapshot_shows_blocks_and_progress_of_requests() -> None:
    core = busy_core()
    taken = core.snapshot()
    stats = taken.stats
    assert taken.stride == 1 and len(taken.blocks) == stats.num_total_blocks
    assert taken.blocks.count(-2) == stats.num_free_blocks
    assert taken.blocks.count(-1) == stats.num_cached_blocks
    assert sum(holder >= 0 for holder in taken.blocks) == stats.num_used_blocks
    assert [one.is_running for one in taken.requests] == [True, True, False]
    for index, one in enumerate(taken.requests):
        # A block that two share is told of the later one's.
        assert one.is_running <= taken.blocks.count(index) <= one.num_blocks
        assert 0 <= one.waited <= one.age
    assert taken.requests[0].num_output_tokens > 0 == taken.requests[2].num_output_tokens
    assert taken.num_steps == 5 and taken.num_rows >= taken.num_steps
    # The prompts, less what two of them found in the cache, and three tokens after each of those.
    assert taken.num_tokens == 30 + (20 - 16) + (21 - 16) + 2 * 3


def test_snapshot_of_many_blocks_shows_every_nth(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = busy_core().snapshot().blocks
    monkeypatch.setattr(observe, "MOST_BLOCKS", 64)
    taken = busy_core().snapshot()
    assert taken.stride == 4 and taken.blocks == whole[::4]


def test_snapshots_are_taken_at_most_twice_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    core = busy_core()
    now = [100.0]
    monkeypatch.setattr(observe.time, "monotonic", lambda: now[0])
    first = core.snapshot()
    core.abort_requests(["r0"])
    assert core.snapshot() is first
    now[0] += 0.5
    assert len(core.snapshot().requests) == 2


def test_a_snapshot_survives_the_wire() -> None:
    taken = busy_core().snapshot()
    assert GetSnapshot().read(CallResult.of(1, taken).answer) == taken
