"""Chat templates rendered in processes that may be lost, within limits of time and memory.

A checkpoint's template is as little to be trusted as its other files, and even a sound one takes
long over long messages: neither may hold the event loop. Processes know nothing between jobs,
so that all pools of this process share them.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
from typing import TypedDict

import msgspec

from vllm_lite import envs
from vllm_lite.errors import RequestError, UnavailableError
from vllm_lite.log import init_logger

logger = init_logger(__name__)

NUM_PROCESSES = 2
# Of the clock: a process that is stopped or starved is lost, too.
MAX_RENDER_SECONDS = 10.0
_START_SECONDS = 60.0
COMMAND = [sys.executable, "-P", "-m", "vllm_lite.server.template_process"]
_READ_BYTES = 1 << 18


class _Answer(TypedDict, total=False):
    text: str
    # Shown to the client, and the field at fault.
    error: str
    param: str | None
    # For the log.
    cause: str


class _Process:
    """One template process; belongs to one job at a time."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair()
        with theirs:
            self._socket.setblocking(False)
            self._process = subprocess.Popen(
                [*COMMAND, str(os.getpid())],
                stdin=theirs.fileno(),
                # What it prints belongs to the log; standard output is the user's.
                stdout=2,
                process_group=0,
                env=envs.module_environment(),
            )
        self._is_ready = False

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    async def call(self, job: bytes) -> bytes:
        """The answer; b"" where the process was lost over the job. Raises TimeoutError."""
        if not self._is_ready:
            async with asyncio.timeout(_START_SECONDS):
                self._is_ready = bool(await self._line())
        async with asyncio.timeout(MAX_RENDER_SECONDS):
            return await self._line(job)

    async def _line(self, job: bytes | None = None) -> bytes:
        loop = asyncio.get_running_loop()
        parts = []
        try:
            if job is not None:
                await loop.sock_sendall(self._socket, job + b"\n")
            while part := await loop.sock_recv(self._socket, _READ_BYTES):
                parts.append(part)
                if part.endswith(b"\n"):
                    return b"".join(parts)
        except ConnectionError:
            pass  # it ended in the middle, which is what the empty answer says
        return b""

    def kill(self) -> None:
        """Kill the process."""
        self._process.kill()
        self._process.wait()
        self._socket.close()


_idle: list[_Process] = []


class TemplatePool:
    """Renders as `render_chat` does, some at a time."""

    def __init__(self) -> None:
        self._places = asyncio.Semaphore(NUM_PROCESSES)

    def start(self) -> None:
        """Start a process for the first request."""
        if not _idle:
            _idle.append(_Process())

    async def render(self, job: dict[str, object]) -> str:
        """The prompt of a job of `render_chat`'s arguments, with `model` for the tokenizer.

        Raises RequestError if the template refuses, or its process dies.
        """
        line = _encoded(job)
        async with self._places:
            answer = await self._answer(line)
        if (cause := answer.get("cause")) is not None:
            logger.warning("The chat template failed: %s", cause)
        if "error" in answer:
            raise RequestError(answer["error"], answer["param"])
        return answer["text"]

    async def _answer(self, line: bytes) -> _Answer:
        process = _take()
        try:
            found = await process.call(line)
        except TimeoutError:
            process.kill()
            raise RequestError(
                f"The chat template takes more than {MAX_RENDER_SECONDS:g} seconds to render "
                "these messages",
                "messages",
            ) from None
        except BaseException:
            process.kill()
            raise
        if not found:
            process.kill()
            raise RequestError(
                "The chat template needs too much memory to render these messages", "messages"
            )
        _idle.append(process)
        answer: _Answer = json.loads(found)
        return answer


def _take() -> _Process:
    """An idle process, or a new one."""
    while _idle:
        process = _idle.pop()
        if process.is_alive:
            return process
        process.kill()
    try:
        return _Process()
    except OSError as error:
        logger.error("A template process cannot be started: %s", error)
        raise UnavailableError("The server cannot render chat templates just now") from None


def _encoded(job: dict[str, object]) -> bytes:
    try:
        return msgspec.json.encode(job)
    except (OverflowError, ValueError):
        # Numbers beyond 64 bits, or halves of surrogate pairs.
        return json.dumps(job).encode()
