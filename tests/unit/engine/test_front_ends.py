"""Several front ends of one core each hear what is theirs, and count for each other."""

from __future__ import annotations

import os
import socket
import threading
import time

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


def joined(count: int = 1) -> tuple[CoreChannel, list[FrontEndChannel]]:
    pairs = [socket.socketpair() for _ in range(count)]
    core = CoreChannel([theirs for _, theirs in pairs])
    return core, [FrontEndChannel(end) for end, _ in pairs]


def test_each_front_end_gets_its_own_and_all_hear_of_the_end() -> None:
    core, channels = joined(COUNT)
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
        channel.send(AbortRequests([str(index)]))
    names = set()
    while len(names) < COUNT:
        message = core.receive(block=True)
        assert isinstance(message, AbortRequests)
        names |= set(message.request_ids)
    for channel in channels:
        channel.close()
    core.close()


def test_sending_waits_for_nobody_and_keeps_the_order() -> None:
    """Far more than a socket holds, while nobody receives."""
    core, (front,) = joined()
    sizes = [3, 400_000, 0, 70_000, 1 << 21, 1]
    for index, size in enumerate(sizes):
        front.send(AbortRequests([str(index), "x" * size]))
    found: list[tuple[str, int]] = []
    while len(found) < len(sizes):
        message = core.receive(block=True)
        if isinstance(message, AbortRequests):
            index, text = message.request_ids
            found.append((index, len(text)))
    assert found == [(str(index), size) for index, size in enumerate(sizes)]
    assert not core.wait(0)
    front.close()
    core.close()


def test_messages_that_were_read_together_are_not_waited_for() -> None:
    core, (front,) = joined()
    for name in ("a", "b", "c"):
        front.send(AbortRequests([name]))
    for name in ("a", "b", "c"):
        assert core.wait(0)
        assert core.receive() == AbortRequests([name])
    front.close()
    core.close()


def test_what_a_closing_end_has_sent_still_arrives() -> None:
    core, (front,) = joined()
    for _ in range(8):
        core.send(CoreFailed("ValueError", "x" * 100_000))
    closing = threading.Thread(target=core.close, args=(20.0,))
    closing.start()
    for _ in range(8):
        assert front.wait(20)
        assert isinstance(front.receive(), CoreFailed)
    closing.join(20)
    assert not front.has_ended and front.receive() is None and front.has_ended
    front.close()


def test_a_closing_end_gives_up_in_time_where_nobody_receives() -> None:
    core, (front,) = joined()
    core.send(CoreFailed("ValueError", "x" * (1 << 22)))
    begun = time.monotonic()
    core.close(0.1)
    assert time.monotonic() - begun < 5
    while front.wait(0.1):
        assert front.receive() is None
    front.close()


def test_an_end_is_no_message_and_does_not_keep_anybody_waiting() -> None:
    core, channels = joined(2)
    channels[0].close()
    core.send(CoreFailed("ValueError", "nobody hears"))
    channels[1].send(AbortRequests(["a"]))
    assert core.receive(block=True) == AbortRequests(["a"])
    assert not core.has_ended
    channels[1].close()
    assert core.receive(block=True) is None
    assert core.has_ended
    begun = time.monotonic()
    reader, writer = os.pipe()
    assert core.receive(block=True, other_fd=reader) is None
    assert time.monotonic() - begun < 5
    core.close()
    os.close(reader)
    os.close(writer)


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
