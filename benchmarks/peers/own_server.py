"""Our server in a process of its own, for scripts that load it over HTTP."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import time
from collections.abc import Sequence

import httpx

READY_TIMEOUT = 600.0


class OwnServer:
    """A server of `model` on a free port, with 2,000 blocks and no prefix caching."""

    def __init__(self, name: str, model: str, options: Sequence[str]) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.name = name
        self.url = f"http://127.0.0.1:{port}"
        command = [sys.executable, "-m", "vllm_lite", "serve", model, "--port", str(port)]
        command += ["--host", "127.0.0.1", "--disable-uvicorn-access-log"]
        command += ["--no-enable-prefix-caching", "--num-gpu-blocks-override", "2000", *options]
        self.process = subprocess.Popen(command, stderr=subprocess.DEVNULL)

    async def wait_ready(self) -> None:
        """Ends the program where the server does not start."""
        deadline = time.monotonic() + READY_TIMEOUT
        async with httpx.AsyncClient() as client:
            while time.monotonic() < deadline:
                if self.process.poll() is not None:
                    raise SystemExit(f"the server {self.name!r} ended")
                try:
                    if (await client.get(f"{self.url}/health")).status_code == 200:
                        return
                except httpx.TransportError:
                    await asyncio.sleep(0.2)
        raise SystemExit(f"the server {self.name!r} was not ready in time")

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(60)
