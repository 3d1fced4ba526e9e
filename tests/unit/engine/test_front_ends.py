"""Several front ends of one core each hear what is theirs, and count for each other."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.engine.engines import engine_config
from vllm_lite.core.step import EngineCoreOutput
from vllm_lite.engine.front.admission import Admission
from vllm_lite.engine.front.input_processor import ProcessedInput
from vllm_lite.engine.link.channel import CoreChannel, FrontEndChannel
from vllm_lite.engine.link.messages import AbortRequests, CallResult, CoreFailed, StepOutputs
from vllm_lite.errors import QueueFullError
from vllm_lite.metrics.board import Board, Column
from vllm_lite.metrics.engine_metrics import ConsoleStats, NoMetrics
from vllm_lite.metrics.stats import SchedulerStats, StepStats
from vllm_lite.sampling_params import SamplingParams

COUNT = 3


def test_each_front_end_gets_its_own_and_all_hear_of_the_end(tmp_path: Path) -> None:
    core = CoreChannel(tmp_path, COUNT)
    channels = [FrontEndChannel(tmp_path, index) for index in range(COUNT)]
    output = EngineCoreOutput("1_same.1", [5], front_end=2)
    core.send(StepOutputs([output], SchedulerStats(num_running=1)))
    core.send(CallResult.of(7, True, front_end=1))
    core.send(CoreFailed("ValueError", "gone"))

    def received(channel: FrontEndChannel) -> list[object]:
        found: list[object] = []
        while not (found and isinstance(found[-1], CoreFailed)):
            assert channel.wait(20)
            found.append(channel.receive())
        return found

    first, second, third = (received(channel) for channel in channels)
    # The first speaks for the engine, so it hears how that stands even with nothing to tell.
    assert first[0] == StepOutputs([], SchedulerStats(num_running=1))
    assert second[0] == CallResult.of(7, True, front_end=1)
    assert isinstance(third[0], StepOutputs) and third[0].outputs[0].new_token_ids == [5]
    assert [len(first), len(second), len(third)] == [2, 2, 2]
    for index, channel in enumerate(channels):
        assert channel.wait_connected(20)
        channel.send(AbortRequests([str(index)]))
    names = set()
    while len(names) < COUNT:
        message = core.receive(block=True)
        assert isinstance(message, AbortRequests)
        names |= set(message.request_ids)
    for channel in channels:
        channel.close()
    core.close()


def boards() -> list[Board]:
    first = Board.create(COUNT)
    return [first, *(Board(first.fd, index, COUNT) for index in range(1, COUNT))]


def test_a_board_shows_the_others_rows() -> None:
    first, second, third = boards()
    second.set(Column.NUM_UNFINISHED, 4)
    third.set(Column.NUM_UNFINISHED, 5)
    third.add(Column.PROMPT_TOKENS, 6)
    third.add(Column.PROMPT_TOKENS, 1)
    assert [one.others(Column.NUM_UNFINISHED) for one in (first, second, third)] == [9, 5, 4]
    assert first.others(Column.PROMPT_TOKENS) == 7
    assert first.others(Column.NUM_WAITING_TOKENS) == Board().others(Column.NUM_UNFINISHED) == 0


def test_limits_of_the_queue_hold_for_all_front_ends_together() -> None:
    config = engine_config(max_num_seqs=2, max_num_queued_reqs=2).scheduler
    admissions = [Admission(config, NoMetrics(), board) for board in boards()[:2]]
    asked = ProcessedInput("", [1, 2], SamplingParams(), [], None)
    admissions[0].update(3, 6)
    place = admissions[1].admit(asked)
    with pytest.raises(QueueFullError):
        admissions[1].admit(asked)
    place.leave()
    admissions[0].update(0, 0)
    admissions[1].admit(asked)


def test_throughput_line_counts_all_front_ends() -> None:
    first, second, _ = boards()
    console, other = ConsoleStats("cpu", first), ConsoleStats("cpu", second)
    other.record(None, StepStats(num_prompt_tokens=10**6, num_generation_tokens=10**6))
    line = console.log()
    assert line is not None and "throughput: 0.0" not in line
    idle = console.log()
    assert idle is not None and idle.count("throughput: 0.0") == 2
