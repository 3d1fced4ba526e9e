"""Lifetimes of real processes that are killed, starved or misled."""

from __future__ import annotations

import asyncio
import contextlib
import glob
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from tests.e2e.server_process import ServerProcess
from vllm_lite import LLM, SamplingParams
from vllm_lite.config.engine_args import EngineArgs
from vllm_lite.config.vllm import VllmConfig
from vllm_lite.engine.front.async_llm import AsyncLLM
from vllm_lite.engine.link import spawn
from vllm_lite.engine.link.core_process import CoreProcess, launch_core
from vllm_lite.errors import CheckpointError, EngineDeadError

SMALL = {"max_model_len": 512, "max_num_seqs": 8, "num_gpu_blocks_override": 300}
SMALL_FLAGS = ("--max-model-len", "512", "--num-gpu-blocks-override", "300")
ENDLESS = SamplingParams(max_tokens=480, ignore_eos=True, temperature=0)


@pytest.fixture(scope="module")
def config() -> VllmConfig:
    return EngineArgs(model="demo", **SMALL).create_engine_config("server")


def wait_gone(pids: list[int], timeout: float) -> float:
    """Seconds until none of `pids` runs."""
    began = time.monotonic()
    while alive := [pid for pid in pids if is_running(pid)]:
        assert time.monotonic() - began < timeout, f"still there: {alive}"
        time.sleep(0.02)
    return time.monotonic() - began


def is_running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def private_directories() -> set[str]:
    return {
        path
        for path in glob.glob(os.path.join(tempfile.gettempdir(), "vllm-lite-*"))
        if os.path.isdir(path)
    }


def run_script(body: str, **environment: str) -> subprocess.Popen[str]:
    """A user's script, without any guard, from a directory that hides standard modules."""
    directory = Path(tempfile.mkdtemp(prefix="user-script-"))
    (directory / "queue.py").write_text("raise SystemExit('a module of the user')\n")
    root = Path(__file__).resolve().parents[2]
    return subprocess.Popen(
        [sys.executable, "-P", "-c", textwrap.dedent(body)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=directory,
        env={**os.environ, "PYTHONPATH": str(root), **environment},
    )


SCRIPT = f"""
import sys, time
from vllm_lite import LLM, SamplingParams
llm = LLM("demo", **{SMALL!r})
print(llm.llm_engine._core._handle.pid, flush=True)
print(llm.generate("Hello", SamplingParams(max_tokens=3), use_tqdm=False)[0].outputs[0].text)
"""


@pytest.fixture
def server() -> Iterator[ServerProcess]:
    with ServerProcess(*SMALL_FLAGS) as server:
        yield server


@pytest.mark.alone
def test_a_killed_core_ends_the_server_with_one_line(server: ServerProcess) -> None:
    core = server.core()
    began = time.monotonic()
    core.kill()
    codes = []
    while server.process.poll() is None and time.monotonic() - began < 5:
        try:
            codes.append(httpx.get(f"{server.url}/health", timeout=1.0).status_code)
        except httpx.TransportError:
            break
        time.sleep(0.01)
    assert server.process.wait(5) == 1
    assert time.monotonic() - began < 5
    assert set(codes) <= {200, 503} and codes[-1:] in ([503], [])
    assert "SIGKILL" in server.log().strip().splitlines()[-1]
    assert server.log().count("SIGKILL") == 1
    assert "Traceback" not in server.log()


def test_a_killed_core_ends_a_running_stream_with_an_error(server: ServerProcess) -> None:
    core = server.core()
    body = {"model": "demo", "prompt": "Go", "max_tokens": 480, "ignore_eos": True, "stream": True}
    with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=20) as reply:
        lines = reply.iter_lines()
        next(lines)
        core.kill()
        rest = list(lines)
    assert any('"error"' in line for line in rest)
    assert server.process.wait(5) == 1


def test_a_killed_server_leaves_no_process(server: ServerProcess) -> None:
    pids = [child.pid for child in server.children()]
    assert pids
    server.kill()
    wait_gone(pids, 2)


def test_a_group_wide_interrupt_ends_both_in_order(server: ServerProcess) -> None:
    pids = [child.pid for child in server.children()]
    os.killpg(server.process.pid, signal.SIGINT)
    assert server.process.wait(10) == 0
    wait_gone(pids, 2)
    assert "Traceback" not in server.log()


@pytest.mark.alone
def test_an_idle_server_uses_no_processor(server: ServerProcess) -> None:
    server.post("/v1/completions", model="demo", prompt="Hi", max_tokens=4)
    time.sleep(1.0)
    everyone = [psutil.Process(server.process.pid), *server.children()]
    before = [sum(process.cpu_times()[:2]) for process in everyone]
    time.sleep(4.0)
    after = [sum(process.cpu_times()[:2]) for process in everyone]
    for used in (b - a for a, b in zip(before, after, strict=True)):
        assert used / 4.0 < 0.01, f"{used / 4.0:.1%} of a core"


def test_what_the_core_finds_out_reaches_the_caller_verbatim(tmp_path: Path) -> None:
    """A file that is whole in its header and cut in its weights: only the core sees it."""
    config = EngineArgs(model="demo", **SMALL).create_engine_config("llm")
    cut = tmp_path / "cut.gguf"
    data = Path(config.facts.path).read_bytes()
    cut.write_bytes(data[: len(data) // 2])
    before = private_directories()
    with pytest.raises(CheckpointError, match=r"cut\.gguf") as refused:
        LLM(str(cut), **SMALL)
    assert "\n" not in str(refused.value)
    assert private_directories() <= before


@pytest.mark.alone
def test_a_blocking_caller_hears_of_a_dead_core() -> None:
    llm = LLM("demo", **SMALL)
    core_pid = llm.llm_engine._core._handle.pid  # type: ignore[attr-defined]
    threading.Timer(0.5, os.kill, (core_pid, signal.SIGKILL)).start()
    began = time.monotonic()
    with pytest.raises(EngineDeadError, match="SIGKILL"):
        llm.generate(["Go on"] * 8, ENDLESS, use_tqdm=False)
    assert time.monotonic() - began < 2.5
    with pytest.raises(EngineDeadError):
        llm.generate("Once more", use_tqdm=False)
    llm.close()


@pytest.mark.alone
async def test_tasks_hear_of_a_dead_core(config: VllmConfig) -> None:
    handle = launch_core(config)
    assert isinstance(handle, CoreProcess)
    engine = AsyncLLM(config, handle)

    async def read(name: str) -> None:
        async for _ in engine.generate("Go on", ENDLESS, name):
            pass

    tasks = [asyncio.create_task(read(str(i))) for i in range(4)]
    await asyncio.sleep(0.5)
    os.kill(handle.pid, signal.SIGKILL)
    began = time.monotonic()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert time.monotonic() - began < 1.0
    assert {type(result) for result in results} == {EngineDeadError}
    assert engine.errored
    await engine.shutdown()


@pytest.mark.alone
@pytest.mark.parametrize("is_idle", [False, True])
async def test_a_frozen_core_counts_as_dead(
    config: VllmConfig, monkeypatch: pytest.MonkeyPatch, is_idle: bool
) -> None:
    monkeypatch.setenv("VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS", "1")
    handle = launch_core(config)
    assert isinstance(handle, CoreProcess)
    engine = AsyncLLM(config, handle)
    stream = engine.generate("Go on", ENDLESS, "r")
    if not is_idle:
        await anext(stream)
    os.kill(handle.pid, signal.SIGSTOP)
    with pytest.raises(EngineDeadError, match="VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS"):
        async with asyncio.timeout(30):
            async for _ in stream:
                pass
    wait_gone([handle.pid], 1)
    await engine.shutdown()


@pytest.mark.slow
def test_a_stopped_core_ends_the_server_within_seconds() -> None:
    with ServerProcess(*SMALL_FLAGS) as server:
        (core,) = [
            child
            for child in psutil.Process(server.process.pid).children()
            if "vllm_lite.engine.core" in " ".join(child.cmdline())
        ]
        core.suspend()
        began, status = time.monotonic(), 200
        while status == 200 and time.monotonic() - began < 30:
            time.sleep(0.1)
            try:
                status = httpx.get(f"{server.url}/health", timeout=5).status_code
            except httpx.TransportError:
                status = 0
        assert status in (503, 0)
        assert time.monotonic() - began < 15
        assert server.process.wait(20) == 1
        wait_gone([core.pid], 5)
        assert "SIGSTOP" in server.log()


def test_a_core_that_was_spawned_ahead_is_taken(config: VllmConfig) -> None:
    spawn.spawn_ahead()
    handle = launch_core(config)
    assert isinstance(handle, CoreProcess)
    assert spawn._ahead is None
    assert handle.wait_ready().num_blocks == 300
    handle.stop(5)


@pytest.mark.parametrize("given", [("/no/such/model",), ("demo", "--no-such-option")])
def test_mistakes_in_options_leave_no_process(given: tuple[str, ...]) -> None:
    before = private_directories()
    words = [sys.executable, "-m", "vllm_lite", "serve", *given]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as serve:
        cores = children_seen(serve)
        _, text = serve.communicate(timeout=30)
    assert serve.returncode in (1, 2)
    assert "error: " in text.splitlines()[-1]
    wait_gone(list(cores), 2)
    assert private_directories() <= before


def children_seen(process: subprocess.Popen[str]) -> set[int]:
    """The processes that this one starts until it ends."""
    seen: set[int] = set()
    while process.poll() is None:
        with contextlib.suppress(psutil.NoSuchProcess):
            seen |= {one.pid for one in psutil.Process(process.pid).children(recursive=True)}
        time.sleep(0.005)
    return seen


def test_a_core_outlives_the_thread_that_asked_for_it(config: VllmConfig) -> None:
    handles: list[CoreProcess] = []
    thread = threading.Thread(target=lambda: handles.append(CoreProcess()))
    thread.start()
    thread.join()
    time.sleep(0.3)
    (handle,) = handles
    assert is_running(handle.pid)
    handle.start(config)
    assert handle.wait_ready().num_blocks == 300
    handle.stop(5)
    assert not is_running(handle.pid)


def test_a_script_needs_no_guard_and_leaves_nothing() -> None:
    before = private_directories()
    script = run_script(SCRIPT)
    out, err = script.communicate(timeout=60)
    assert script.returncode == 0, err
    core_pid, text = out.splitlines()[0], out.splitlines()[1:]
    assert text
    wait_gone([int(core_pid)], 2)
    assert private_directories() <= before


def test_a_killed_script_leaves_nothing() -> None:
    before = private_directories()
    script = run_script(SCRIPT + "\ntime.sleep(60)\n")
    assert script.stdout is not None
    core_pid = int(script.stdout.readline())
    script.kill()
    script.communicate(timeout=10)
    wait_gone([core_pid], 2)
    assert private_directories() <= before


def test_a_script_killed_while_the_core_starts_leaves_no_process() -> None:
    body = SCRIPT.split("print(llm.llm_engine")[0]
    script = run_script(body)
    time.sleep(1.0)
    children = [child.pid for child in psutil.Process(script.pid).children(recursive=True)]
    script.kill()
    script.communicate(timeout=10)
    wait_gone(children, 2)


@pytest.mark.slow
async def test_memory_is_flat_after_a_storm(config: VllmConfig) -> None:
    handle = launch_core(config)
    assert isinstance(handle, CoreProcess)
    engine = AsyncLLM(config, handle)

    async def one(number: int) -> None:
        params = SamplingParams(max_tokens=1 + number % 6, ignore_eos=True, n=1 + number % 2)
        stream = engine.generate([1 + number % 5] * (1 + number % 60), params, str(number))
        leave_after = number % 4
        async for _ in stream:
            leave_after -= 1
            if leave_after == 0:
                break
        await stream.aclose()  # type: ignore[attr-defined]

    resident = []
    for first in range(0, 600, 100):
        await asyncio.gather(*(one(first + i) for i in range(100)))
        stats = await engine.get_stats()
        while stats.num_running or stats.num_waiting:
            await asyncio.sleep(0.02)
            stats = await engine.get_stats()
        assert stats.num_used_blocks == 0
        assert stats.num_free_blocks + stats.num_cached_blocks == stats.num_total_blocks
        resident.append(psutil.Process(handle.pid).memory_info().rss / 2**20)
    await engine.shutdown()
    assert resident[-1] - resident[2] < 16, f"resident MiB: {resident}"
