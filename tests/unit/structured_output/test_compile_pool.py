"""A constraint is compiled once, in a process that it may take down with it, and it alone."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest

from tests.models.byte_model import save_byte_model
from vllm_lite.config.engine_args import EngineArgs
from vllm_lite.engine.core import grammar_cache
from vllm_lite.engine.core.grammar_cache import GrammarCache, Result, outcome
from vllm_lite.structured_output import compile_pool
from vllm_lite.structured_output.compile_pool import CompilePool
from vllm_lite.structured_output.grammar import Refusal
from vllm_lite.structured_outputs_params import StructuredOutputsParams


def regex(pattern: str) -> StructuredOutputsParams:
    return StructuredOutputsParams(regex=pattern)


def multiple(number: int) -> StructuredOutputsParams:
    """A constraint that only guidance compiles, which is loaded in no time."""
    return StructuredOutputsParams(json=json.dumps({"type": "integer", "multipleOf": number}))


# The process loads guidance at first, as xgrammar takes seconds.
LIGHT = (
    "import sys\n"
    "from vllm_lite.structured_output import compile_process as process\n"
    "process.GrammarEngines.load = lambda self: self._engine('guidance')\n"
    "process.main(sys.argv[1:])"
)


@pytest.fixture
def light(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_pool, "COMMAND", [sys.executable, "-c", LIGHT])


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CompilePool]:
    path: Path = save_byte_model(tmp_path_factory.mktemp("bytes"))
    pool = CompilePool(EngineArgs(model=str(path)).create_engine_config("llm"))
    yield pool
    pool.close()


def test_good_and_bad_constraints_come_back(pool: CompilePool) -> None:
    good, bad = pool.submit(regex("[ab]+")).result(), pool.submit(regex("(")).result()
    assert not isinstance(good, Refusal) and good.num_bytes > 0
    assert isinstance(bad, Refusal) and bad.status == 400
    facts = pool.facts
    assert facts.reasoning is None
    assert facts.vocabulary.tokens[facts.vocabulary.eos_ids[0]] == b"<eos>"


@pytest.mark.usefixtures("light")
def test_a_process_that_is_gone_is_replaced(pool: CompilePool) -> None:
    for process in pool._processes:
        process._process.kill()
        process.exit_code()
    assert not isinstance(pool.submit(multiple(3)).result(), Refusal)


# The engine works for seconds on this; here it gets half of one.
SLOW = multiple(1000003)
HASTY = LIGHT.replace("process.main", "process.MAX_COMPILE_SECONDS = 0.5\nprocess.main")


def test_one_that_takes_too_long_costs_only_itself(
    pool: CompilePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compile_pool, "COMMAND", [sys.executable, "-c", HASTY])
    hasty = CompilePool(pool._config)
    try:
        slow = hasty.submit(SLOW).result()
        assert isinstance(slow, Refusal) and slow.status == 400
        assert "seconds to compile" in slow.message
        assert not isinstance(hasty.submit(multiple(3)).result(), Refusal)
    finally:
        hasty.close()


def stop(process: compile_pool._Process) -> None:
    os.kill(process._process.pid, signal.SIGSTOP)


@pytest.mark.usefixtures("light")
@pytest.mark.parametrize("length", [4, 200_000])  # the longer is more than a pipe holds
def test_one_that_stands_still_is_replaced(
    length: int, pool: CompilePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool.submit(multiple(3)).result()
    held = pool._idle[-1]
    stop(held)
    with monkeypatch.context() as patch:
        patch.setattr(compile_pool, "MAX_WAIT_SECONDS", 0.5)
        refusal = pool.submit(regex("a" * length)).result()
    assert isinstance(refusal, Refusal) and refusal.status == 503
    assert "not compiled in time" in refusal.message
    assert held not in pool._processes and held.exit_code() == -signal.SIGKILL
    assert not isinstance(pool.submit(multiple(3)).result(), Refusal)


@pytest.mark.usefixtures("light")
@pytest.mark.parametrize("is_new", [False, True])
def test_closing_waits_for_no_process(is_new: bool, pool: CompilePool) -> None:
    closing = CompilePool(pool._config)
    if not is_new:
        closing.submit(multiple(3)).result()
        stop(closing._idle[-1])
    futures = [closing.submit(regex(text)) for text in "bcd"]
    while not closing._processes:
        time.sleep(0.01)
    if is_new:
        stop(closing._processes[0])
    start = time.monotonic()
    closing.close()
    assert time.monotonic() - start < 10
    for future in futures:
        found = outcome(future)
        assert isinstance(found, Refusal) and found.status == 503
        assert all(process.exit_code() for process in closing._processes)


class CountingCompiler:
    """Makes futures that the test fulfils."""

    def __init__(self) -> None:
        self.made: list[Future[Result]] = []

    def submit(self, params: StructuredOutputsParams) -> Future[Result]:
        self.made.append(Future())
        return self.made[-1]


def test_a_constraint_is_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = CountingCompiler()
    cache = GrammarCache(compiler)
    first = cache.get(regex("a"))
    assert cache.get(regex("a")) is first
    compiler.made[0].set_result(Refusal("no", "regex"))
    assert cache.get(regex("a")) is first
    cache.get(regex("b"))
    assert len(compiler.made) == 2


def test_the_cache_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammar_cache, "MAX_GRAMMARS", 3)
    monkeypatch.setattr(grammar_cache, "MAX_COMPILING", 4)
    compiler = CountingCompiler()
    cache = GrammarCache(compiler)
    for number in range(4):
        cache.get(regex(str(number)))
    crowded = outcome(cache.get(regex("one too many")))
    assert isinstance(crowded, Refusal) and crowded.status == 429
    for future in compiler.made:
        future.set_result(Refusal("no", "regex"))
    cache.get(regex("3"))
    cache.get(regex("0"))  # the oldest was forgotten
    assert len(compiler.made) == 5


def test_a_failure_of_ours_is_tried_again() -> None:
    compiler = CountingCompiler()
    cache = GrammarCache(compiler)
    future = cache.get(regex("a"))
    compiler.made[0].set_exception(OSError("no processes left"))
    found = outcome(future)
    assert isinstance(found, Refusal) and found.status == 503 and "processes" not in found.message
    assert cache.get(regex("a")) is not future
