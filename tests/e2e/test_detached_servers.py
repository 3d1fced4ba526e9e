"""run, ps and stop with the demo: a server that outlives its starter, and only it is ended."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.pseudo_terminal import CTRL_C, CTRL_D, PseudoTerminal
from vllm_lite.cli.detached import servers
from vllm_lite.config.demo import fetch_demo

OPTIONS = ("--", "--max-model-len", "512", "--num-gpu-blocks-override", "200")
OPTIONS += ("--override-generation-config", '{"temperature": 0, "max_new_tokens": 8}')


def command(*words: str) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-m", "vllm_lite", *words],
        capture_output=True,
        text=True,
        timeout=120,
        stdin=subprocess.DEVNULL,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache of its own that holds the demo; whatever was started ends with the test."""
    demo = fetch_demo()
    monkeypatch.setenv("VLLM_CACHE_ROOT", str(tmp_path))
    (tmp_path / "demo").mkdir()
    shutil.copy(demo, tmp_path / "demo")
    yield tmp_path
    for server in servers.running():
        servers.stop(server, 30, by_force=True)


def test_a_server_is_started_found_used_again_and_stopped(root: Path) -> None:
    code, answer, errors = command("run", "demo", "What is the capital of France?", *OPTIONS)
    assert code == 0 and "Paris" in answer, errors
    assert "Starting a server of demo" in errors
    (server,) = servers.running()
    folder = root / "servers"
    assert folder.stat().st_mode & 0o777 == 0o700
    assert all(file.stat().st_mode & 0o077 == 0 for file in (server.path, server.log))
    _, shown, _ = command("ps")
    assert shown.splitlines()[1].split()[:3] == ["demo", str(server.pid), "ready"]
    listening = [
        one.laddr.ip
        for one in psutil.Process(server.pid).net_connections()
        if one.status == psutil.CONN_LISTEN
    ]
    assert set(listening) == {"127.0.0.1"}
    code, answer, errors = command("run", "demo", "Say hello.")
    assert code == 0 and errors == "", errors
    assert [one.pid for one in servers.running()] == [server.pid]
    code, _, errors = command("run", "demo", "Hi.", "--", "--max-num-seqs", "2")
    assert code == 1 and "runs with other options; run `vllm-lite stop demo` first" in errors
    assert command("stop", "demmo")[2].endswith("no server of demmo runs (did you mean demo?)\n")
    code, shown, _ = command("stop", "demo")
    assert (code, shown) == (0, f"stopped demo (pid {server.pid})\n")
    assert not server.is_alive and servers.running() == []


def test_a_chat_is_left_and_the_server_stays(root: Path) -> None:
    with PseudoTerminal("run", "demo", *OPTIONS) as terminal:
        terminal.wait_for("Please enter a message", timeout=60)
        terminal.wait_for("> ")
        terminal.type(CTRL_D)
        assert terminal.wait_end() == 0
    (server,) = servers.running()
    assert server.is_ready
    assert command("stop", "--all", "--force")[0] == 0
    assert servers.running() == []


def test_an_interrupted_start_leaves_no_server(root: Path) -> None:
    with PseudoTerminal("run", "demo", *OPTIONS) as terminal:
        terminal.wait_for("Starting a server")
        terminal.type(CTRL_C)
        assert terminal.wait_end() == 130
    assert servers.running() == [] and list((root / "servers").glob("*.json")) == []


def test_a_server_that_cannot_start_says_why(root: Path) -> None:
    code, _, errors = command("run", "demo", "Hi.", "--", "--max-model-len", "99999999")
    last = errors.splitlines()[-1]
    assert code == 1 and "did not start: --max-model-len 99999999 is more than" in last
    assert servers.running() == []


@pytest.mark.parametrize("part", ["start", "pid"])
def test_another_process_of_the_same_id_is_left_alone(root: Path, part: str) -> None:
    bystander = subprocess.Popen(["sleep", "60"])
    try:
        start = servers.start_of(bystander.pid)
        boot, _, ticks = start.partition(" ")
        other = f"{boot} {int(ticks) - 1}" if part == "start" else f"another-boot {ticks}"
        state = {"model": "demo", "arguments": [], "port": 1, "pid": bystander.pid}
        path = servers.folder() / f"{bystander.pid}.json"
        path.write_text(json.dumps({**state, "start": other, "since": time.time()}))
        stale = servers.Server(**json.loads(path.read_text()))
        servers.stop(stale, 1)
        code, _, errors = command("stop", str(bystander.pid))
        assert code == 1 and "no server of" in errors
        assert bystander.poll() is None and not path.exists()
    finally:
        bystander.send_signal(signal.SIGKILL)
        bystander.wait()


def test_two_runs_at_once_start_one_server(root: Path) -> None:
    words = [sys.executable, "-m", "vllm_lite", "run", "demo", "Hi.", *OPTIONS]
    both = [
        subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for _ in range(2)
    ]
    assert [one.wait(120) for one in both] == [0, 0]
    assert len(servers.running()) == 1
