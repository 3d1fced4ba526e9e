"""A command behind a pseudo-terminal: type, wait for what it shows, press Ctrl-C."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import sys
import termios
import time
from multiprocessing.connection import Connection

from tests.forked import SERVER
from vllm_lite.cli.main import main

_ESCAPES = re.compile(r"\x1b(\[[0-9;?]*[ -/]*[@-~]|\][^\x07]*\x07|[=>()][A-Z0-9]?)")
_ERASURES = re.compile(r"(\x1b\[2K|\x1b\[1A)")
CTRL_C, CTRL_D = "\x03", "\x04"


class PseudoTerminal:
    """`vllm-lite ARGUMENTS` in a terminal of its own; use it as a context manager."""

    def __init__(self, *arguments: str, **environment: str) -> None:
        self._terminal, child = pty.openpty()
        environment = {**os.environ, "TERM": "xterm-256color", **environment}
        with Connection(child) as side:  # which travels to a process
            self.process = SERVER.Process(target=_run, args=(side, arguments, environment))
            self.process.start()
        self.raw = ""

    def __enter__(self) -> PseudoTerminal:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.join(10)
        os.close(self._terminal)

    @property
    def shown(self) -> str:
        """All that was shown so far, without colours, and what was erased line by line."""
        text = ""
        for part in _ERASURES.split(self.raw):
            if part == "\x1b[2K":
                text = text[: text.rfind("\n") + 1]
            elif part == "\x1b[1A":
                text = text[: max(0, text.rfind("\n"))]
            else:
                text += _ESCAPES.sub("", part).replace("\r", "")
        return text

    def type(self, keys: str) -> None:
        os.write(self._terminal, keys.encode())

    def wait_for(self, text: str, count: int = 1, timeout: float = 30.0) -> None:
        """Until `text` has been shown `count` times."""
        deadline = time.monotonic() + timeout
        while self.shown.count(text) < count:
            if not self._read(deadline - time.monotonic()):
                raise AssertionError(f"{text!r} was not shown; this was:\n{self.shown}")

    def wait_end(self, timeout: float = 30.0) -> int:
        """Until the command ends; its exit code."""
        deadline = time.monotonic() + timeout
        while self._read(deadline - time.monotonic()):
            pass
        if time.monotonic() > deadline:
            raise AssertionError(f"the command goes on; this was shown:\n{self.shown}")
        self.process.join(10)
        assert self.process.exitcode is not None
        return self.process.exitcode

    def _read(self, timeout: float) -> bool:
        """Take what is there; false at the end and when time is up."""
        ready, _, _ = select.select([self._terminal], [], [], max(0.0, timeout))
        if not ready:
            return False
        try:
            data = os.read(self._terminal, 65536)
        except OSError:  # the child has closed its side
            return False
        self.raw += data.decode(errors="replace")
        return bool(data)


def _run(side: Connection, arguments: tuple[str, ...], environment: dict[str, str]) -> None:
    """The command, as if it had been started in a terminal, so that Ctrl-C is a signal."""
    os.setsid()
    fcntl.ioctl(side.fileno(), termios.TIOCSCTTY, 0)
    for number in range(3):
        os.dup2(side.fileno(), number)
    side.close()
    os.environ.clear()
    os.environ.update(environment)
    sys.stdin, sys.stdout, sys.stderr = (
        open(number, mode, closefd=False)  # noqa: SIM115
        for number, mode in enumerate(("r", "w", "w"))
    )
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.argv = ["vllm-lite", *arguments]
    sys.exit(main(arguments))
