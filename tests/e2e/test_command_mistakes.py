"""Each command's commonest mistakes: an exit code, one line, no traceback."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import psutil
import pytest

from tests.e2e.conftest import Command
from tests.e2e.server_process import free_port

NOWHERE = "http://127.0.0.1:1/v1"
# The others are refused in this process, by the same function.
AS_PROCESSES = {
    "chat --modle-name x",
    f"complete --url {NOWHERE}",
    "run-batch -i none.jsonl -o out.jsonl",
    "serve none",
    "serve demo --host 192.0.2.1 --port 1",
    "bench startup --model none",
}


def process(*words: str) -> tuple[int, str, str]:
    """The exit code of `vllm-lite WORDS`, what it printed and what it said."""
    done = subprocess.run(
        [sys.executable, "-m", "vllm_lite", *words],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        stdin=subprocess.DEVNULL,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    ("line", "code", "cause"),
    [
        ("chat --modle-name x", 2, "--model-name"),
        ("complete --max-tokens many", 2, "--max-tokens"),
        ("run-batch -i in.jsonl", 2, "-o/--output-file"),
        ("collect-env --all", 2, "--all"),
        (f"chat --url {NOWHERE} -q hi", 1, "start one with `vllm-lite serve demo --port 1`"),
        (f"complete --url {NOWHERE} -q hi", 1, "no server answers at"),
        (f"complete --url {NOWHERE}", 1, "no server answers at"),
        ("run-batch -i none.jsonl -o out.jsonl", 1, "--input-file none.jsonl does not exist"),
        ("run-batch -i in.jsonl -o none/out.jsonl", 1, "there is no directory none"),
        ("run-batch -i in.jsonl -o in.jsonl", 1, "is the input"),
        ("run-batch -i http://127.0.0.1:1/x -o out.jsonl", 1, "has the private address 127.0.0.1"),
        ("chat --config none.yaml", 2, "none.yaml"),
        ("serve none", 1, "none"),
        ("serve demo --chat-template none.jinja", 1, "--chat-template"),
        ("serve demo --tool-call-parser none", 1, "--tool-call-parser none"),
        ("serve demo --middleware no.thing", 1, "--middleware no.thing"),
        ("serve demo --ssl-keyfile none --ssl-certfile none", 1, "--ssl-keyfile"),
        ("serve demo --host 192.0.2.1 --port 1", 1, "choose another with --port or --host"),
        ("serve demo --max-model-len 1000000", 1, "--max-model-len 1000000"),
        ("run-batch -i one.jsonl -o out.jsonl --model none", 1, "none"),
        ("run-batch -i one.jsonl -o out.jsonl --model demo --chat-template none", 1, "none"),
        ("run-batch -i one.jsonl -o out.jsonl --model demo --tool-call-parser no", 1, "parser no"),
        ("bench latency --model none", 1, "none"),
        ("bench startup --model none", 1, "none"),
        ("bench throughput --model none", 1, "none"),
        ("bench serve --port 1 --model demo", 1, "there is no server"),
    ],
)
def test_a_mistake_is_one_line(
    line: str,
    code: int,
    cause: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: Command,
) -> None:
    (tmp_path / "in.jsonl").write_text("\n")
    request = '{"custom_id": "a", "url": "/v1/completions", "body": {"prompt": "a"}}\n'
    (tmp_path / "one.jsonl").write_text(request)
    monkeypatch.chdir(tmp_path)
    run = process if line in AS_PROCESSES else command
    ended, printed, said = run(*line.split())
    *before, last = said.splitlines()
    # Nothing else is said: at most the usage line stands before it.
    assert len(before) == code - 1 and all(line.startswith("usage: ") for line in before)
    assert (ended, printed) == (code, "")
    assert cause in last and last.startswith(f"vllm-lite {line.split()[0]}: error: ")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.jsonl", "one.jsonl"]


@pytest.mark.parametrize("limit", [12, 16, 64])
def test_too_few_files_are_one_line(limit: int) -> None:
    command = f"ulimit -n {limit}; exec '{sys.executable}' -m vllm_lite serve demo --port 0"
    environment = {**os.environ, "VLLM_LOGGING_LEVEL": "ERROR"}
    done = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, timeout=60, env=environment
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.count("\n") == 1 and f"only {limit} files" in done.stderr


@pytest.mark.parametrize("place", ["2>/dev/full", "2>&-"])
@pytest.mark.parametrize(("line", "code"), [("serve /none", 1), ("serve --none", 2), ("none", 2)])
def test_a_mistake_that_nobody_can_be_told_has_its_exit_code(
    line: str, code: int, place: str
) -> None:
    command = f"exec '{sys.executable}' -m vllm_lite {line} {place}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, timeout=60)
    assert (done.returncode, done.stdout) == (code, b"")


def test_a_server_whose_log_has_no_room_serves() -> None:
    port = free_port()
    options = f"--host 127.0.0.1 --port {port} --max-model-len 256"
    command = f"exec '{sys.executable}' -m vllm_lite serve demo {options} >/dev/null 2>/dev/full"
    process = subprocess.Popen(["bash", "-c", command])
    try:
        body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
        while True:
            try:
                url = f"http://127.0.0.1:{port}/v1/chat/completions"
                reply = httpx.post(url, json=body, timeout=60)
                break
            except httpx.ConnectError:
                assert process.poll() is None
                time.sleep(0.1)
        assert reply.status_code == 200
        process.terminate()
        assert process.wait(30) == 0
    finally:
        process.kill()


@pytest.mark.parametrize(
    ("line", "sign"),
    [
        # The engine core is started, and far from ready: the log says nothing yet.
        ("serve demo --host 127.0.0.1 --port 0", None),
        ("bench startup --model demo", b"Engine core ready"),
    ],
)
def test_an_interrupted_start_is_no_traceback(line: str, sign: bytes | None) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "vllm_lite", *line.split()],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stderr is not None
    shown = b""
    while sign is not None and sign not in shown:
        shown += os.read(process.stderr.fileno(), 4096)
    while sign is None and not psutil.Process(process.pid).children():
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130 and b"Traceback" not in shown + errors


def test_a_batch_that_is_interrupted_while_the_model_loads_leaves_nothing(tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text('{"custom_id": "a", "url": "/v1/completions", "body": {"prompt": "a"}}\n')
    words = ["--model", "demo", "-i", str(source), "-o", str(tmp_path / "out.jsonl")]
    process = subprocess.Popen(
        [sys.executable, "-m", "vllm_lite", "run-batch", *words], stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    assert "model demo" in process.stderr.readline()
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130 and "Traceback" not in errors
    assert [path.name for path in tmp_path.iterdir()] == ["in.jsonl"]
