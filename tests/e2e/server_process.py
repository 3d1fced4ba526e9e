"""`vllm-lite serve` as a real process for the end-to-end tests: start, wait, look inside, stop."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx
import psutil


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class ServerProcess:
    """One server on a free port of the loopback; use it as a context manager."""

    def __init__(self, *arguments: str, model: str = "demo", **environment: str) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        handle, path = tempfile.mkstemp(prefix="vllm-lite-test-", suffix=".log")
        self._log = Path(path)
        command = [sys.executable, "-m", "vllm_lite", "serve", model]
        command += ["--host", "127.0.0.1", "--port", str(self.port), *arguments]
        self.started = time.monotonic()
        self.process = subprocess.Popen(
            command,
            stdout=handle,
            stderr=subprocess.STDOUT,
            env={**os.environ, **environment},
            start_new_session=True,
        )
        os.close(handle)

    def __enter__(self) -> ServerProcess:
        try:
            self.wait_ready()
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._log.unlink(missing_ok=True)

    def wait_ready(self, timeout: float = 60.0) -> float:
        """Poll /health; seconds from the command to the first 200."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise RuntimeError(
                    f"the server ended with {self.process.returncode}:\n{self.log()}"
                )
            try:
                if httpx.get(f"{self.url}/health", timeout=2.0).status_code == 200:
                    return time.monotonic() - self.started
            except httpx.TransportError:
                pass
            time.sleep(0.02)
        raise TimeoutError(f"not ready within {timeout} s:\n{self.log()}")

    def log(self) -> str:
        """Everything that the server and its children printed so far."""
        return self._log.read_text(encoding="utf-8", errors="replace")

    def core(self) -> psutil.Process:
        """The engine core's process."""
        return next(
            one
            for one in self.children()
            if any("vllm_lite.engine.core" in w for w in one.cmdline())
        )

    def children(self) -> list[psutil.Process]:
        """The engine core and whatever else the server started."""
        return psutil.Process(self.process.pid).children(recursive=True)

    def stop(self, timeout: float = 20.0) -> int:
        """SIGTERM, then wait; the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            raise

    def kill(self) -> None:
        """SIGKILL for the server alone; its children must follow by themselves."""
        self.process.kill()
        self.process.wait(10)

    def metric(self, name: str) -> float:
        """The sum of one metric's samples, for example `vllm:kv_cache_usage_perc`."""
        text = httpx.get(f"{self.url}/metrics", timeout=5.0).text
        lines = [line for line in text.splitlines() if line.startswith((name + "{", name + " "))]
        if not lines:
            raise KeyError(f"no metric {name}")
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines)

    def post(self, path: str, **body: Any) -> httpx.Response:
        return httpx.post(f"{self.url}{path}", json=body, timeout=60.0)
