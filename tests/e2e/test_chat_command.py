"""`chat` and `complete` as their users have them: real processes, a terminal, the demo model."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from tests.e2e.server_process import ServerProcess
from tests.pseudo_terminal import CTRL_C, CTRL_D, PseudoTerminal

# A request that the demo model, when it is greedy, answers at the greatest length.
LONG = "Write a very long story about a king, a dragon and a sword."
GREEDY = ("--override-generation-config", '{"temperature": 0}', "--max-model-len", "2048")


def command(name: str, server: ServerProcess, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "vllm_lite", name, "--url", f"{server.url}/v1", *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_conversation_in_a_terminal() -> None:
    with (
        ServerProcess(*GREEDY, "--num-gpu-blocks-override", "200") as server,
        PseudoTerminal("chat", "--url", f"{server.url}/v1") as terminal,
    ):
        terminal.wait_for("Using model: demo\n")
        terminal.wait_for("> ")
        terminal.type(f"{LONG}\r")
        wait_running(server, 1)
        terminal.type(CTRL_C)
        terminal.wait_for("(stopped; Ctrl-C again leaves)")
        wait_running(server, 0)
        terminal.type("What is the capital of France?\r" + CTRL_D)
        assert terminal.wait_end(60) == 0, terminal.shown
        reply = terminal.shown.partition("France?\n")[2]
        assert reply.strip("> \n")
        assert "error" not in terminal.shown


@pytest.mark.parametrize(("name", "text"), [("chat", "Hello!"), ("complete", "The sky is")])
def test_a_pipe_gets_plain_replies(demo_server: ServerProcess, name: str, text: str) -> None:
    out, err = command(name, demo_server, "--stats").communicate(f"{text}\n", timeout=60)
    model, *reply, first, rate = out.splitlines()
    assert (model, err) == ("Using model: demo", "")
    assert any(reply) and first.startswith("TTFT: ") and rate.startswith("TPS:  ")
    assert "\x1b" not in out


def test_a_server_that_dies_in_mid_answer() -> None:
    with ServerProcess(*GREEDY, "--num-gpu-blocks-override", "200") as server:
        child = command("chat", server, "-q", LONG)
        assert child.stdout is not None
        assert child.stdout.readline() == "Using model: demo\n"
        assert child.stdout.read(1)
        server.kill()
        _, err = child.communicate(timeout=10)
        assert child.returncode == 1
        assert err.startswith(
            f"vllm-lite chat: error: the server at {server.url}/v1 broke off its reply"
        )
        assert err.count("\n") == 1


def wait_running(server: ServerProcess, count: int) -> None:
    deadline = time.monotonic() + 5
    while server.metric("vllm:num_requests_running") != count:
        assert time.monotonic() < deadline
        time.sleep(0.02)
