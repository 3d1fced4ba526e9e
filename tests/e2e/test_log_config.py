"""--log-config-file says how every process of a server logs."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

from tests.e2e.server_process import ServerProcess
from tests.server.refused import REFUSED


def test_all_processes_log_as_the_file_says(tmp_path: Path) -> None:
    path, config = tmp_path / "all.log", tmp_path / "log.json"
    handler = {"class": "logging.FileHandler", "filename": str(path), "formatter": "f"}
    names = ("vllm_lite", "uvicorn", "uvicorn.access")
    config.write_text(
        json.dumps(
            {
                "version": 1,
                "disable_existing_loggers": False,
                "formatters": {"f": {"format": "%(process)d|%(name)s|%(message)s"}},
                "handlers": {"f": handler},
                "loggers": {n: {"handlers": ["f"], "level": "INFO"} for n in names},
            }
        )
    )
    options = ("--log-config-file", os.path.relpath(config), "--enable-log-requests")
    with ServerProcess(*options, "--enable-log-outputs", "--max-log-len", "5") as server:
        core = server.core()
        # The engine core has seldom anything to say; where it would say it shows.
        assert str(path) in {one.path for one in core.open_files()}
        server.post("/v1/completions", prompt="Once upon a time", max_tokens=8, ignore_eos=True)
        server.post("/v1/completions", prompt="a", max_tokens=0)
        server.stop()
        printed = server.log()
    lines = [line.split("|", 2) for line in path.read_text().splitlines() if line.count("|") >= 2]
    texts = [text for _, _, text in lines]
    asked = [text for text in texts if "Received request" in text]
    assert len(asked) == 1 and "'Once '" in asked[0] and "SamplingParams(" in asked[0]
    assert len([text for text in texts if text.startswith("Generated")]) == 1
    assert any('"POST /v1/completions HTTP/1.1" 200' in text for text in texts)
    assert not any(word in printed for word in ("Received request", "GET /health"))


def test_a_start_takes_eight_lines_at_most(demo_server: ServerProcess) -> None:
    lines = demo_server.log().splitlines()
    end = next(i for i, line in enumerate(lines) if "Application startup complete" in line)
    assert end < 8, "\n".join(lines[: end + 1])


def test_refused_requests_are_a_line_of_info_each_at_most(demo_server: ServerProcess) -> None:
    before = len(demo_server.log())
    for status, raw in REFUSED.values():
        with socket.create_connection(("127.0.0.1", demo_server.port), timeout=10) as client:
            client.sendall(raw)
            assert client.recv(12) == b"HTTP/1.1 %d" % status
    lines = demo_server.log()[before:].splitlines()
    assert len(lines) <= len(REFUSED) and all(line.startswith("INFO: ") for line in lines), lines
