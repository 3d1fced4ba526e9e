"""The core's own laws: what it refuses, what it survives, and when it gives up."""

from __future__ import annotations

import pytest

from tests.builders import message
from tests.fakes import ScriptedExecutor
from tests.unit.engine.engines import Scripted, engine_config
from vllm_lite.core.step import EngineCoreOutput
from vllm_lite.engine.core.engine_core import EngineCore
from vllm_lite.engine.core.patience import MAX_FAILED_STEPS
from vllm_lite.engine.link.channel import decode_from_core, decode_to_core, message_encoder
from vllm_lite.engine.link.messages import AbortRequests, AddRequests, StepOutputs
from vllm_lite.errors import EngineDeadError
from vllm_lite.metrics.stats import SchedulerStats


def core() -> tuple[EngineCore, ScriptedExecutor]:
    executor = Scripted()
    return EngineCore(engine_config(), executor), executor.made


def test_an_idle_core_has_no_work() -> None:
    engine, _ = core()
    assert not engine.has_work()
    engine.add_requests([message(5, max_tokens=1)])
    assert engine.has_work()
    (output,) = engine.step().outputs
    assert output.finish_reason == "length"
    # The workers are told that the request has left; nobody else is told anything.
    assert engine.step() == StepOutputs([], None)
    assert not engine.has_work()


def test_a_refused_request_fails_alone() -> None:
    engine, _ = core()
    good = message(5, request_id="good", max_tokens=1)
    engine.add_requests([good, good])
    outputs = engine.step().outputs
    reasons = [(output.request_id, output.finish_reason) for output in outputs]
    assert reasons == [("good", "error"), ("good", "length")]


def test_every_output_names_the_front_end_of_its_request() -> None:
    engine, _ = core()
    ended, running = message(5, request_id="ended", max_tokens=1), message(5, request_id="running")
    ended.front_end = running.front_end = 3
    engine.refuse(["unreadable"], "it cannot be read", 3)
    engine.add_requests([ended, ended, running])
    outputs = engine.step().outputs
    engine.pause("abort")
    outputs += engine.step().outputs
    reasons = [(output.request_id, output.finish_reason) for output in outputs]
    assert ("unreadable", "error") in reasons and ("running", "abort") in reasons
    assert {output.front_end for output in outputs} == {3}


def test_an_abort_frees_blocks_at_once_and_is_reported() -> None:
    engine, _ = core()
    engine.add_requests([message(20, request_id="r", max_tokens=50), message(9, request_id="s")])
    engine.step()
    assert engine.make_stats().num_used_blocks > 0
    engine.abort_requests(["r", "s", "unknown"])
    assert engine.make_stats().num_used_blocks == 0
    assert engine.has_work()
    stats = engine.step().stats
    assert stats is not None and stats.num_running == 0
    assert not engine.has_work()


def test_async_scheduling_plans_a_step_while_another_runs() -> None:
    executor = Scripted()
    engine = EngineCore(engine_config(async_scheduling=True), executor)
    engine.add_requests([message(5, max_tokens=3)])
    told = [[o.finish_reason for o in engine.step().outputs] for _ in range(5)]
    # The fourth has nothing to plan, and the fifth tells the workers who left.
    assert told == [[], [None], [None], ["length"], []]
    counts = [sum(step.num_scheduled_tokens.values()) for step in executor.made.steps]
    assert counts == [5, 1, 1, 0]
    while engine.has_work():
        engine.step()
    assert executor.made.num_known_requests == 0


def test_who_cannot_run_ahead_waits_and_the_others_go_on() -> None:
    executor = Scripted()
    engine = EngineCore(engine_config(async_scheduling=True), executor)
    waits, goes = message(5, max_tokens=3), message(5, max_tokens=5)
    engine.add_requests([waits, goes])
    engine._scheduler.requests[waits.request_id].can_run_ahead = False
    while engine.has_work():
        engine.step()
    steps = [step.num_scheduled_tokens for step in executor.made.steps]
    assert [waits.request_id in step for step in steps] == [True, False, True, False, True, False]
    assert [goes.request_id in step for step in steps] == [True] * 5 + [False]


def test_nothing_is_planned_on_a_step_that_could_not_be_submitted() -> None:
    executor = Scripted()
    engine = EngineCore(engine_config(async_scheduling=True), executor)
    engine.add_requests([message(5, request_id="lost", max_tokens=3)])
    executor.made.raise_next = RuntimeError("broken")
    (output,) = engine.step().outputs
    assert (output.request_id, output.finish_reason) == ("lost", "error")
    engine.add_requests([message(5, max_tokens=1)])
    told = [output for _ in range(4) for output in engine.step().outputs]
    assert [output.finish_reason for output in told] == ["length"]
    assert executor.made.num_known_requests == 0


def test_failures_in_a_row_end_the_core() -> None:
    engine, executor = core()
    for _ in range(MAX_FAILED_STEPS - 1):
        engine.add_requests([message(3)])
        executor.raise_next = RuntimeError("broken")
        (output,) = engine.step().outputs
        assert output.finish_reason == "error"
    engine.add_requests([message(3)])
    executor.raise_next = RuntimeError("broken for good")
    with pytest.raises(EngineDeadError, match="broken for good"):
        engine.step()


def test_telling_the_workers_who_left_forgives_nothing() -> None:
    """Requests that come one by one leave an empty step behind each failure."""
    engine, executor = core()
    with pytest.raises(EngineDeadError, match="broken"):
        for _ in range(MAX_FAILED_STEPS):
            engine.add_requests([message(3)])
            executor.raise_next = RuntimeError("broken")
            engine.step()
            while engine.has_work():
                engine.step()


def test_an_interrupt_in_a_step_ends_its_requests_and_loses_none() -> None:
    engine, executor = core()
    engine.add_requests([message(3, request_id="a")])
    executor.raise_next = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        engine.step()
    assert engine.has_work()
    engine.add_requests([message(3, request_id="b", max_tokens=1)])
    reasons = [(output.request_id, output.finish_reason) for output in engine.step().outputs]
    assert reasons == [("a", "error"), ("b", "length")]
    assert engine.make_stats().num_used_blocks == 0


def test_a_step_that_works_forgives_the_failures_before() -> None:
    engine, executor = core()
    for _ in range(3 * MAX_FAILED_STEPS):
        engine.add_requests([message(3, max_tokens=1)])
        executor.raise_next = RuntimeError("broken")
        engine.step()
        engine.add_requests([message(3, max_tokens=1)])
        assert engine.step().outputs[0].finish_reason == "length"


def test_an_error_in_the_books_goes_up() -> None:
    engine, _ = core()
    engine.add_requests([message(3)])

    def broken(*_: object) -> list[EngineCoreOutput]:
        raise KeyError("lost")

    engine._scheduler.update_from_output = broken  # type: ignore[method-assign]
    with pytest.raises(KeyError):
        engine.step()


def test_messages_survive_the_wire() -> None:
    encode = message_encoder().encode
    request = message(7, temperature=0.5, stop_token_ids=[3], logit_bias={4: 1.5}, seed=2**62)
    assert decode_to_core(encode(AddRequests([request]))) == AddRequests([request])
    assert decode_to_core(encode(AbortRequests(["a"]))) == AbortRequests(["a"])
    outputs = StepOutputs([EngineCoreOutput("a", [1], finish_reason="stop")], SchedulerStats(1))
    assert decode_from_core(encode(outputs)) == outputs
