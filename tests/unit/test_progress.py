"""Bars are for terminals."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import termios

import pytest

DRAW = """
from vllm_lite.progress import progress_bar
for _ in progress_bar(range(3), desc="Counting", is_shown={}): pass
with progress_bar(total=2, desc="Filling", is_shown={}) as bar:
    bar.set_postfix_str("so far")
    bar.update(2)
"""


def drawn(*, is_shown: bool, error: int) -> bytes:
    code = DRAW.format(is_shown, is_shown)
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=error)
    assert done.returncode == 0
    return done.stdout


@pytest.mark.parametrize("is_shown", [True, False])
def test_a_bar_is_drawn_on_a_terminal_where_it_is_wanted(is_shown: bool) -> None:
    terminal, child = pty.openpty()
    termios.tcsetwinsize(child, (24, 100))
    # A bar that is not there must not be waited for.
    os.set_blocking(terminal, False)
    try:
        assert drawn(is_shown=is_shown, error=child) == b""
        try:
            shown = os.read(terminal, 65536)
        except BlockingIOError:
            shown = b""
    finally:
        os.close(child)
        os.close(terminal)
    assert all((name in shown) is is_shown for name in (b"Counting", b"Filling"))


def test_a_pipe_gets_nothing() -> None:
    assert drawn(is_shown=True, error=subprocess.STDOUT) == b""
