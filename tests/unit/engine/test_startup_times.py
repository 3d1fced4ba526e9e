"""A core that shares its process: it times its own start, and may be closed before it begins."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from tests.unit.engine.engines import Scripted, engine_config
from vllm_lite.config.vllm import VllmConfig
from vllm_lite.engine.link.inproc_client import CoreThread, InprocClient
from vllm_lite.engine.link.messages import CoreReady
from vllm_lite.log import timeline


def in_this_thread(config: VllmConfig) -> CoreReady:
    core = InprocClient(config, Scripted(None))
    core.shutdown()
    return core.ready


def in_a_thread(config: VllmConfig) -> CoreReady:
    core = CoreThread(Scripted(None))
    core.start(config)
    try:
        return core.wait_ready()
    finally:
        core.stop(5.0)


@pytest.mark.parametrize("start", [in_this_thread, in_a_thread])
def test_a_second_core_times_its_own_start(start: object) -> None:
    assert callable(start)
    for _ in range(2):
        time.sleep(0.5)
        began = time.monotonic()
        ready = start(engine_config())
        seconds = time.monotonic() - began
        assert [name for name, _ in ready.timeline] == ["weights", "KV cache"]
        assert sum(spent for _, spent in ready.timeline) <= seconds


def test_a_core_in_a_thread_leaves_its_callers_times_alone() -> None:
    timeline.restart()
    timeline.mark("config")
    in_a_thread(engine_config())
    assert [name for name, _ in timeline.take()] == ["config"]


def test_a_core_whose_thread_begins_after_the_close_ends_without_an_error() -> None:
    closed = threading.Event()

    class Late(CoreThread):
        def _run(self, *words: Any) -> None:
            closed.wait(5.0)
            super()._run(*words)
            ended.set()

    ended = threading.Event()
    core = Late(Scripted(None))
    core.start(engine_config())
    core.kill()
    core.close()
    closed.set()
    assert ended.wait(5.0)
