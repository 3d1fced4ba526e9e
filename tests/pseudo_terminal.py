"""A command behind a pseudo-terminal: type, wait for what it shows, press Ctrl-C."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import sys
import time

_ESCAPES = re.compile(r"\x1b(\[[0-9;?]*[ -/]*[@-~]|\][^\x07]*\x07|[=>()][A-Z0-9]?)")
_ERASURES = re.compile(r"(\x1b\[2K|\x1b\[1A)")
CTRL_C, CTRL_D = "\x03", "\x04"


class PseudoTerminal:
    """`vllm-lite ARGUMENTS` in a terminal of its own; use it as a context manager."""

    def __init__(self, *arguments: str, **environment: str) -> None:
        self._terminal, child = pty.openpty()
        # A session of its own with this as its controlling terminal, so that Ctrl-C is a signal.
        self.process = subprocess.Popen(
            [sys.executable, "-c", _START, *arguments],
            stdin=child,
            stdout=child,
            stderr=child,
            env={**os.environ, "TERM": "xterm-256color", **environment},
            start_new_session=True,
        )
        os.close(child)
        self.raw = ""

    def __enter__(self) -> PseudoTerminal:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        self.process.wait(10)
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
        return self.process.wait(10)

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


_START = """
import fcntl, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
from vllm_lite.cli.main import main
sys.exit(main(sys.argv[1:]))
"""
