"""A demo server that end-to-end tests share and do not harm, and commands in this process."""

from __future__ import annotations

import io
import logging
import sys
from collections.abc import Callable, Iterator

import pytest

from tests.e2e.server_process import ServerProcess
from vllm_lite import log
from vllm_lite.cli.main import main
from vllm_lite.engine.link import spawn

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="session")
def demo_server() -> Iterator[ServerProcess]:
    with ServerProcess("--max-model-len", "2048", "--num-gpu-blocks-override", "2000") as server:
        yield server


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    """Runs `vllm-lite WORDS` in this process: its exit code, what it printed, what it said.

    No process of an engine core is spawned ahead.
    """
    monkeypatch.setattr(spawn, "spawn_ahead", lambda: None)
    monkeypatch.setattr(log, "_process_name", "")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    for handler in filter(log._is_ours, logging.getLogger("vllm_lite").handlers):
        monkeypatch.setattr(handler, "stream", sys.stderr)

    def run(*words: str) -> tuple[int, str, str]:
        try:
            code = main(words)
        except SystemExit as end:
            assert isinstance(end.code, int)
            code = end.code
        return code, *capsys.readouterr()

    return run
