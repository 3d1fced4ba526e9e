"""run-batch as a process on the demo model: whole, killed, interrupted, out of disk and misled."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

ROOT = Path(__file__).resolve().parents[2]
SMALL = ("--max-model-len", "256", "--num-gpu-blocks-override", "100", "--max-num-seqs", "2")


def command(source: Path, output: Path, *words: str) -> list[str]:
    start = [sys.executable, "-m", "vllm_lite", "run-batch", "--model", "demo", *SMALL]
    return [*start, "-i", str(source), "-o", str(output), *words]


def run(source: Path, output: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(source, output, *words), capture_output=True, text=True, timeout=120, check=False
    )


def write(path: Path, number: int, max_tokens: int) -> Path:
    """`number` requests whose answers are the same on every run, and a bad line amid them."""
    requests: list[Any] = []
    for i in range(number):
        body: dict[str, Any] = {"model": "demo", "max_tokens": max_tokens, "temperature": 0}
        url = "/v1/completions"
        if i % 2:
            body["prompt"] = f"{i} apples and {i + 1} pears make"
        else:
            url = "/v1/chat/completions"
            body["messages"] = [{"role": "user", "content": f"What follows {i}?"}]
        body["ignore_eos"] = True
        requests.append({"custom_id": f"r{i}", "method": "POST", "url": url, "body": body})
    texts = [json.dumps(request) for request in requests]
    texts.insert(number // 2, '{"custom_id": "bad", "url": "/v1/compl')
    path.write_text("\n".join(texts) + "\n")
    return path


def answers(path: Path) -> list[tuple[str, int, str | None]]:
    """(custom_id, status, text) of every record."""
    found = []
    for line in path.read_text().splitlines():
        record = json.loads(line)
        body = record["response"]["body"]
        choice = body["choices"][0] if body else {}
        text = choice["message"]["content"] if "message" in choice else choice.get("text")
        found.append((record["custom_id"], record["response"]["status_code"], text))
    return found


def wait_for(happens: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 60
    while not happens():
        assert process.poll() is None, "the batch ended too early"
        assert time.monotonic() < deadline
        time.sleep(0.01)


def num_lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def test_a_batch_is_answered_in_order(tmp_path: Path) -> None:
    source, output = write(tmp_path / "in.jsonl", 6, 4), tmp_path / "out.jsonl"
    done = run(source, output)
    assert done.returncode == 0, done.stderr
    found = answers(output)
    assert [custom_id for custom_id, _, _ in found] == ["r0", "r1", "r2", "bad", "r3", "r4", "r5"]
    assert [status for _, status, _ in found] == [200, 200, 200, 400, 200, 200, 200]
    assert all(text for _, status, text in found if status == 200)
    assert "Running batch" not in done.stderr  # bars are for terminals
    assert "Wrote 7 answers" in done.stderr and "1 of them errors" in done.stderr
    assert "Traceback" not in done.stderr and done.stdout == ""
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.jsonl", "out.jsonl"]


@pytest.mark.slow
def test_a_killed_run_loses_nothing_and_memory_stays_flat() -> None:
    # The small form of a run of 20,000 lines; the script itself fails where a law is broken.
    words = [
        "--lines",
        "200",
        "--max-tokens",
        "2",
        "--line-bytes",
        "2000",
        "--interval",
        "0.02",
        "--options",
    ]
    # Few blocks, so that all have been touched before the memory is compared.
    options = "--max-model-len 256 --num-gpu-blocks-override 64 --max-num-seqs 8"
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "large_batch.py"), *words, options],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Both outputs are the same: 200 records, 2 of them errors" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_what_is_done_survives_the_end(number: signal.Signals, tmp_path: Path) -> None:
    source, output = write(tmp_path / "in.jsonl", 20, 24), tmp_path / "out.jsonl"
    journal = tmp_path / "out.jsonl.journal"
    process = subprocess.Popen(
        command(source, output), stderr=subprocess.PIPE, start_new_session=True
    )
    wait_for(lambda: num_lines(journal) >= 6, process)
    children = psutil.Process(process.pid).children(recursive=True)
    if number == signal.SIGINT:
        # As a terminal does: everyone in the foreground is told.
        os.killpg(process.pid, number)
    else:
        process.send_signal(number)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 130
    assert psutil.wait_procs(children, timeout=10)[1] == []
    assert not output.exists()
    assert b"continue with --resume" in errors and b"Traceback" not in errors
    num_done = num_lines(journal) - 1
    assert 5 <= num_done < 21

    resumed = run(source, output, "--resume")
    assert resumed.returncode == 0, resumed.stderr
    assert f"{num_done} of 21 lines are done already" in resumed.stderr
    assert not journal.exists()
    whole = tmp_path / "whole.jsonl"
    assert run(source, whole).returncode == 0
    assert answers(output) == answers(whole)


@pytest.mark.slow
def test_an_engine_that_dies_is_one_line_and_leaves_its_results(tmp_path: Path) -> None:
    source, output = write(tmp_path / "in.jsonl", 20, 24), tmp_path / "out.jsonl"
    journal = tmp_path / "out.jsonl.journal"
    process = subprocess.Popen(command(source, output), stderr=subprocess.PIPE, text=True)
    wait_for(lambda: num_lines(journal) >= 3, process)
    for child in psutil.Process(process.pid).children(recursive=True):
        child.kill()
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 1
    assert "Traceback" not in errors and "continue with --resume" in errors
    assert errors.splitlines()[-1].startswith("vllm-lite run-batch: error: ")
    assert "SIGKILL" in errors.splitlines()[-1]
    assert not output.exists() and num_lines(journal) >= 3


@pytest.mark.slow
def test_a_disk_that_fills_half_way_is_one_line_and_keeps_what_fits(tmp_path: Path) -> None:
    source, output = write(tmp_path / "in.jsonl", 20, 8), tmp_path / "out.jsonl"
    journal = tmp_path / "out.jsonl.journal"
    done = subprocess.run(
        command(source, output),
        stderr=subprocess.PIPE,
        text=True,
        timeout=120,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000)),
    )
    assert done.returncode == 1 and "Traceback" not in done.stderr
    kept = num_lines(journal) - 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith(f"vllm-lite run-batch: error: cannot write {journal}: ")
    assert last.endswith(f"it holds {kept} results: make room and continue with --resume")
    assert 0 < kept < 21 and journal.read_bytes().endswith(b"}\n") and not output.exists()
    resumed = run(source, output, "--resume")
    assert resumed.returncode == 0 and len(answers(output)) == 21


@pytest.mark.slow
def test_a_full_disk_is_one_line_and_exit_code_1(tmp_path: Path) -> None:
    source = write(tmp_path / "in.jsonl", 2, 2)
    done = run(source, Path("/dev/full"), "--output-tmp-dir", str(tmp_path / "tmp"))
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith("vllm-lite run-batch: error: cannot write /dev/full: No space left")
    assert "--resume" in last and "Traceback" not in done.stderr
    (journal,) = (tmp_path / "tmp").iterdir()
    assert num_lines(journal) == 4
