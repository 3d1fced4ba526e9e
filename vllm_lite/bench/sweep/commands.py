"""The processes of a sweep: commands that run to their end, and a server.

A server has a session of its own and is always stopped with all its children.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

from vllm_lite import envs
from vllm_lite.errors import UsageError

_POLL_SECONDS = 0.2
_STOP_SECONDS = 10.0
# vLLM's; a server without pictures has the first only.
_CACHES = ("/reset_prefix_cache", "/reset_mm_cache", "/reset_encoder_cache")


def run_command(words: Sequence[str], *, show_stdout: bool) -> None:
    """Run a command to its end; raises UsageError where it cannot start or fails."""
    try:
        done = subprocess.run(
            list(words), stdout=None if show_stdout else subprocess.DEVNULL, check=False
        )
    except OSError as error:
        raise UsageError(f"cannot run {words[0]}: {error.strerror}") from None
    if done.returncode in (-signal.SIGINT, 130):
        raise KeyboardInterrupt
    if done.returncode:
        raise UsageError(f"`{shlex.join(words)}` ended with code {done.returncode}")


class SweptServer:
    """A running server and its caches."""

    def __init__(self, words: Sequence[str]) -> None:
        host = _value(words, "--host") or "127.0.0.1"
        host = "127.0.0.1" if host in ("0.0.0.0", "::") else host
        self.url = f"http://{f'[{host}]' if ':' in host else host}:"
        self.url += _value(words, "--port", "-p") or "8000"

    def is_ready(self) -> bool:
        """Whether /health answers 200."""
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=2) as answer:
                return bool(answer.status == 200)
        except (OSError, ValueError):
            return False

    def reset_caches(self) -> None:
        """Empty the server's caches; raises UsageError if it cannot."""
        for path in _CACHES:
            request = urllib.request.Request(self.url + path, data=b"", method="POST")
            try:
                urllib.request.urlopen(request, timeout=60).close()
            except urllib.error.HTTPError as error:
                if path == _CACHES[0] or error.code not in (404, 405):
                    raise UsageError(
                        f"the server does not reset its caches (POST {path}: HTTP {error.code}); "
                        "give --after-bench-cmd, such as true"
                    ) from None
            except OSError as error:
                raise UsageError(f"the server does not answer: {error}") from None


@contextmanager
def serving(words: Sequence[str], timeout: float, log: Path | None) -> Iterator[SweptServer]:
    """A ready server, stopped when the context ends; raises UsageError.

    Its output goes to the file `log`, or to our own output.
    """
    server = SweptServer(words)
    if server.is_ready():
        raise UsageError(f"a server is already at {server.url}; stop it, or give another --port")
    where = "above" if log is None else f"in {log}"
    try:
        with open(log, "ab") if log else nullcontext() as file:
            process = subprocess.Popen(
                list(words),
                env=envs.child_environment(VLLM_SERVER_DEV_MODE="1"),  # for resetting its caches
                stdout=file,
                stderr=file,
                start_new_session=True,
            )
    except OSError as error:
        raise UsageError(f"cannot run {words[0]}: {error.strerror}") from None
    try:
        deadline = time.monotonic() + timeout
        while not server.is_ready():
            if process.poll() is not None:
                raise UsageError(
                    f"the server ended with code {process.returncode} before it was ready; its "
                    f"log is {where}"
                )
            if time.monotonic() > deadline:
                raise UsageError(
                    f"the server was not ready within {timeout:g} s; its log is {where}"
                )
            time.sleep(_POLL_SECONDS)
        yield server
    finally:
        _stop(process)


def show_command(words: Sequence[str]) -> None:
    """Print a command for copying to a shell."""
    sys.stdout.write(f"  $ {shlex.join(words)}\n")
    sys.stdout.flush()


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Terminate a server's session, then kill what is left."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        pass
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _value(words: Sequence[str], *flags: str) -> str | None:
    """The last value that one of `flags` has in a command."""
    found = None
    for word, following in zip(words, [*words[1:], ""], strict=True):
        name, equals, value = word.partition("=")
        if name in flags:
            found = value if equals else following
    return found
