"""Several processes answer for one engine: as one server to clients, to Prometheus, at its end."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import psutil
import pytest

from tests.e2e.server_process import ServerProcess

COUNT = 3
OPTIONS = (
    *("--api-server-count", str(COUNT), "--max-model-len", "2048"),
    *("--num-gpu-blocks-override", "1000", "--enable-server-load-tracking"),
)


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with ServerProcess(*OPTIONS) as started:
        wait_replicas(started)
        yield started


def replicas(server: ServerProcess) -> list[psutil.Process]:
    found = server.children()
    return [one for one in found if module_of(one) == "vllm_lite.server.process.replica_process"]


def wait_replicas(server: ServerProcess, count: int = COUNT) -> None:
    """Until every process listens."""
    deadline = time.monotonic() + 60
    while server.log().count("Application startup complete") < count:
        assert time.monotonic() < deadline, server.log()
        time.sleep(0.02)


def complete(server: ServerProcess, prompt: str, tokens: int = 8) -> str:
    """One completion over a connection of its own, which any process may take."""
    body = {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
    answer = httpx.post(f"{server.url}/v1/completions", json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["choices"][0]["text"])


def took(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def test_all_answer_alike_and_metrics_count_all(server: ServerProcess) -> None:
    before = server.metric("vllm:generation_tokens_total")
    times = [took(one) for one in replicas(server)]
    assert len(times) == COUNT - 1
    with ThreadPoolExecutor(12) as pool:
        texts = list(pool.map(lambda _: complete(server, "Once upon a time", 3), range(60)))
    assert len(set(texts)) == 1
    for _ in range(6):
        assert server.metric("vllm:generation_tokens_total") - before == 60 * 3
    assert server.metric("vllm:num_requests_running") == 0
    text = httpx.get(f"{server.url}/metrics").text
    line = 'http_requests_total{handler="/v1/completions",method="POST",status="2xx"} 60.0'
    assert line in text
    assert "process_resident_memory_bytes" not in text
    late = [took(one) for one in replicas(server)]
    assert all(after > early for early, after in zip(times, late, strict=True))


def test_load_counts_the_requests_of_all(server: ServerProcess) -> None:
    body = {"prompt": "a", "max_tokens": 1000, "ignore_eos": True, "stream": True}
    seen = []
    with ThreadPoolExecutor(9) as pool:
        left = threading.Event()

        def hold() -> None:
            with httpx.stream(
                "POST", f"{server.url}/v1/completions", json=body, timeout=60
            ) as stream:
                lines = stream.iter_lines()
                next(lines)
                left.wait(30)

        holding = [pool.submit(hold) for _ in range(8)]
        deadline = time.monotonic() + 30
        while 8 not in seen and time.monotonic() < deadline:
            seen.append(httpx.get(f"{server.url}/load").json()["server_load"])
        left.set()
        for one in holding:
            one.result()
    assert 8 in seen


def test_sigterm_lets_every_process_finish_what_it_runs(server: ServerProcess) -> None:
    children = server.children()
    with ThreadPoolExecutor(9) as pool:
        results = [pool.submit(complete, server, "a", 100) for _ in range(9)]
        while server.metric("vllm:num_requests_running") < 9:
            assert not any(one.done() for one in results)
        assert server.stop(timeout=60) == 0
        assert all(one.result() for one in results)
    _, alive = psutil.wait_procs(children, timeout=10)
    assert not alive
    assert "rror" not in server.log()


def module_of(process: psutil.Process) -> str:
    return next(word for word in process.cmdline() if word.startswith("vllm_lite."))


@pytest.mark.parametrize(
    ("module", "words"),
    [
        ("vllm_lite.server.process.replica_process", "API server"),
        ("vllm_lite.engine.core", "engine core"),
    ],
)
def test_a_dead_process_ends_the_server_with_one_line(module: str, words: str) -> None:
    with ServerProcess(*OPTIONS[2:], "--api-server-count", "2") as server:
        wait_replicas(server, 2)
        children = server.children()
        next(one for one in children if module_of(one) == module).kill()
        assert server.process.wait(30) == 1
        lines = [line for line in server.log().splitlines() if "error:" in line]
        assert len(lines) == 1 and "SIGKILL" in lines[0] and words in lines[0]
        _, alive = psutil.wait_procs(children, timeout=10)
        assert not alive
