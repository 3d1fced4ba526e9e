"""The processes of a sweep: commands that run to their end, and a server.

A server has a session of its own and is always stopped with all its children.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vllm_lite import envs
from vllm_lite.errors import UsageError

# A record may name itself, instead of being named after its values.
_NAME = "_benchmark_name"
_POLL_SECONDS = 0.2
_STOP_SECONDS = 10.0
# vLLM's; a server without pictures has the first only.
_CACHES = ("/reset_prefix_cache", "/reset_mm_cache", "/reset_encoder_cache")


@dataclass(frozen=True, slots=True)
class Overrides:
    """Options and their values, with a name for people and files."""

    values: Mapping[str, Any] = field(default_factory=dict)
    given_name: str | None = None

    @property
    def name(self) -> str:
        """The record's own name, or its values."""
        return self.given_name or "-".join(f"{key}={value}" for key, value in self.values.items())

    @property
    def text(self) -> str:
        return ", ".join(f"{key}={value}" for key, value in self.values.items()) or "as it is"

    @property
    def record(self) -> dict[str, Any]:
        named = {} if self.given_name is None else {_NAME: self.given_name}
        return {**named, **self.values}

    def __bool__(self) -> bool:
        return bool(self.values or self.given_name)

    def get(self, key: str) -> Any:
        """The value of `key`, however it is spelled; None where it is not set."""
        return next((v for k, v in self.values.items() if _plain(k) == _plain(key)), None)

    def having(self, **values: Any) -> Overrides:
        kept = {k: v for k, v in self.values.items() if _plain(k) not in values}
        return Overrides({**kept, **values}, self.given_name)

    def apply(self, command: Sequence[str]) -> list[str]:
        """`command` with these options, in place where it had them, else at its end."""
        words = list(command)
        for key, value in self.values.items():
            place = _find(words, key)
            wanted = list(_words(key, value))
            if place is None:
                words += wanted
                continue
            has_value = (
                "=" not in words[place]
                and place + 1 < len(words)
                and not words[place + 1].startswith("--")
                and not isinstance(value, bool)
            )
            words[place : place + 1 + has_value] = wanted
        return words


def read_overrides(flag: str, file_name: str | None) -> list[Overrides]:
    """The combinations of a file: a list of objects, or names to objects; one without a file."""
    if file_name is None:
        return [Overrides()]
    path = Path(file_name).expanduser()
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{flag} {path}: {error.strerror}") from None
    except ValueError as error:
        raise UsageError(f"{flag} {path} is not JSON: {error}") from None
    if isinstance(content, dict):
        content = [
            {_NAME: name, **(values if isinstance(values, dict) else {"": values})}
            for name, values in content.items()
        ]
    is_list = isinstance(content, list) and content
    if not is_list or not all(isinstance(row, dict) and "" not in row for row in content):
        raise UsageError(f"{flag} {path} is neither a list of objects nor names to objects")
    listed = [
        Overrides({k: v for k, v in row.items() if k != _NAME}, row.get(_NAME)) for row in content
    ]
    names = [one.name for one in listed]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise UsageError(f"{flag} {path} has {', '.join(twice)} twice; results would mix")
    return listed


def _plain(key: str) -> str:
    head, dot, rest = key.partition(".")
    return head.replace("-", "_") + dot + rest


def _words(key: str, value: Any) -> Iterator[str]:
    head, dot, rest = key.partition(".")
    flag = f"--{head.replace('_', '-')}{dot}{rest}"
    if isinstance(value, bool) and not dot:
        yield flag if value else "--no-" + flag.removeprefix("--")
    elif isinstance(value, bool):
        yield f"{flag}={str(value).lower()}"
    elif isinstance(value, list) and not dot:
        yield flag
        yield from map(str, value)
    else:
        yield flag
        yield json.dumps(value) if isinstance(value, dict) else str(value)


def _find(words: Sequence[str], key: str) -> int | None:
    wanted = {_plain(key), "no_" + _plain(key)}
    for place, word in enumerate(words):
        if word.startswith("--") and _plain(word[2:].partition("=")[0]) in wanted:
            return place
    return None


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
                if path == _CACHES[0] or error.code not in (404, 405, 501):
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
