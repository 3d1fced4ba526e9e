"""Panics of the tokenizers package, which is written in Rust, as ordinary errors.

A panic is no Exception in Python, and prints a backtrace to standard error by itself.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import TracebackType

from vllm_lite.errors import VLLMLiteError

_STDERR = 2


class TokenizerPanic(VLLMLiteError):
    """The tokenizers package gave up in the middle of its work."""


class PanicGuard:
    """Raises TokenizerPanic for a panic in its body. Without state."""

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        # The class cannot be imported.
        if kind is not None and kind.__name__ == "PanicException":
            lines = str(error).splitlines()
            raise TokenizerPanic(lines[0] if lines else "no reason given") from None


@contextmanager
def quiet_panics() -> Iterator[None]:
    """As PanicGuard, without what a panic prints; what else is printed comes afterwards."""
    try:
        saved = os.dup(_STDERR)
    except OSError:  # closed: nothing is printed there
        with PanicGuard():
            yield
        return
    with tempfile.TemporaryFile() as held:
        os.dup2(held.fileno(), _STDERR)
        try:
            with PanicGuard():
                yield
        except TokenizerPanic:
            held.truncate(0)
            raise
        finally:
            os.dup2(saved, _STDERR)
            os.close(saved)
            held.seek(0)
            with suppress(OSError):
                os.write(_STDERR, held.read())
