"""A core counts as stuck when it shows no sign of life, not when it or its watcher is slow."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import cast

import pytest

from vllm_lite.engine.link import core_client
from vllm_lite.engine.link.channel import Heartbeat
from vllm_lite.engine.link.core_client import STALL_LIMIT, ProcessSign, Watch, process_sign
from vllm_lite.engine.link.core_handle import CoreHandle


class _Handle:
    """A core's handle as a Watch reads it, with a made-up process sign."""

    def __init__(self) -> None:
        self.heartbeat = Heartbeat.create()
        self.watched_pid: int | None = 1
        self.computes_itself = True
        self.sign = ProcessSign("S", 0.0)


@pytest.fixture
def handle(monkeypatch: pytest.MonkeyPatch) -> Iterator[_Handle]:
    one = _Handle()
    monkeypatch.setattr(core_client, "process_sign", lambda pid: one.sign)
    clock = {"now": 0.0}

    def monotonic() -> float:
        clock["now"] += 1.0
        return clock["now"]

    monkeypatch.setattr(core_client.time, "monotonic", monotonic)
    yield one
    one.heartbeat.close()


def verdicts(handle: _Handle, looks: int, cpu: float = 0.0) -> list[str]:
    """The verdicts of several looks while the core uses `cpu` seconds between two of them."""
    one = Watch(cast("CoreHandle", handle))
    found = []
    for _ in range(looks):
        found.append(one.verdict())
        handle.sign = handle.sign._replace(cpu=handle.sign.cpu + cpu)
    return [verdict for verdict in found if verdict]


def test_an_idle_core_is_never_stuck(handle: _Handle) -> None:
    assert not verdicts(handle, 1000)


def test_a_step_without_a_sign_of_life_is_stuck_within_seconds(handle: _Handle) -> None:
    handle.heartbeat.expect_step()
    assert not verdicts(handle, int(STALL_LIMIT))
    assert "no processor" in verdicts(handle, int(STALL_LIMIT) + 3)[0]


def test_a_stopped_core_is_stuck_even_with_nothing_to_do(handle: _Handle) -> None:
    handle.sign = ProcessSign("T", 5.0)
    assert "SIGSTOP" in verdicts(handle, int(STALL_LIMIT) + 3)[0]


def test_core_waiting_for_ranks_is_stuck_only_when_stopped(handle: _Handle) -> None:
    handle.computes_itself = False
    handle.heartbeat.expect_step()
    assert not verdicts(handle, 3 * int(STALL_LIMIT))
    handle.sign = ProcessSign("T", 0.0)
    assert "SIGSTOP" in verdicts(handle, int(STALL_LIMIT) + 3)[0]


@pytest.mark.parametrize("state", ["S", "R"])
def test_a_step_that_computes_has_the_whole_limit(
    handle: _Handle, state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS", "100")
    handle.heartbeat.begin_step()
    handle.sign = ProcessSign(state, 0.0)
    assert not verdicts(handle, 100, cpu=0.02)
    assert "TIMEOUT_SECONDS=100" in verdicts(handle, 105, cpu=0.02)[0]


def test_step_may_use_the_largest_steps_processor_time(
    handle: _Handle, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle.heartbeat.step_limit = 20.0
    handle.heartbeat.begin_step()
    handle.sign = ProcessSign("R", 1000.0)
    assert not verdicts(handle, 10, cpu=2.0)
    # One that gets little of a busy machine may take its time.
    assert not verdicts(handle, 60, cpu=0.3)
    assert "used 22 s of processor time" in verdicts(handle, 13, cpu=2.0)[0]
    monkeypatch.setenv("VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS", "100")
    assert not verdicts(handle, 60, cpu=2.0)


def test_each_step_has_the_limit_for_itself(handle: _Handle) -> None:
    handle.heartbeat.step_limit = 5.0
    one = Watch(cast("CoreHandle", handle))
    for _ in range(30):
        handle.heartbeat.begin_step()
        assert one.verdict() is None
        handle.sign = handle.sign._replace(cpu=handle.sign.cpu + 4.0)


def test_waiting_for_a_disk_is_no_stall(handle: _Handle) -> None:
    handle.heartbeat.begin_step()
    handle.sign = ProcessSign("D", 0.0)
    assert not verdicts(handle, 100)


def test_steps_that_follow_each_other_are_no_step(handle: _Handle) -> None:
    one = Watch(cast("CoreHandle", handle))
    for _ in range(500):
        handle.heartbeat.begin_step()
        time.sleep(0.0001)
        assert one.verdict() is None
    handle.heartbeat.end_step()
    handle.heartbeat.expect_step()
    before = handle.heartbeat.stamp
    handle.heartbeat.expect_step()  # adds nothing to a step that runs
    assert handle.heartbeat.stamp == before


def test_unwatched_time_does_not_count(handle: _Handle, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both processes of a container that was frozen wake up well."""
    handle.heartbeat.begin_step()
    one = Watch(cast("CoreHandle", handle))
    assert one.verdict() is None and one.verdict() is None
    monkeypatch.setattr(core_client.time, "monotonic", lambda: 1e9)
    assert one.verdict() is None


def test_the_kernels_word_is_read_right() -> None:
    name = "import os, time; open('/proc/self/comm', 'w').write('a) T (b'); print(flush=True); "
    command = [sys.executable, "-c", name + "\nwhile True: pass"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        time.sleep(0.3)
        first = process_sign(child.pid)
        os.kill(child.pid, signal.SIGSTOP)
        time.sleep(0.2)
        last = process_sign(child.pid)
        child.kill()
    assert first is not None and last is not None
    assert first.state == "R" and last.state == "T" and last.cpu >= first.cpu > 0
    assert process_sign(2**22 + 5) is None
