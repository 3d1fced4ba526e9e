"""Servers that `vllm-lite run` left running: started, found again, stopped.

Each has a state file and a log in a folder of mode 0700. A process is taken for a server only
if its id, its start time and the machine's boot are those of the state file: ids are reused.
"""

from __future__ import annotations

import fcntl
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from vllm_lite import envs
from vllm_lite.errors import UsageError, VLLMLiteError

HOST = "127.0.0.1"
_PORT = 8000
_LOOK_EVERY = 0.05
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
# Of /proc/PID/stat, counted from the field after the command's name.
_START_TIME = 19


class ServerError(VLLMLiteError):
    """A detached server does not start or does not end."""


@dataclass(frozen=True)
class Server:
    """One server's state file."""

    model: str
    # What came after -- on its command line.
    arguments: list[str]
    port: int
    pid: int
    # When the process started, and in which boot.
    start: str
    # Seconds since 1970.
    since: float

    @property
    def url(self) -> str:
        """Its OpenAI API, as --url takes it."""
        return f"http://{HOST}:{self.port}/v1"

    @property
    def path(self) -> Path:
        return folder() / f"{self.pid}.json"

    @property
    def log(self) -> Path:
        return folder() / f"{self.port}.log"

    @property
    def is_alive(self) -> bool:
        """Whether the process is still this server."""
        return start_of(self.pid) == self.start

    @property
    def is_ready(self) -> bool:
        connection = http.client.HTTPConnection(HOST, self.port, timeout=5)
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()


def folder() -> Path:
    path = Path(envs.VLLM_CACHE_ROOT) / "servers"
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        if path.stat().st_uid != os.getuid():
            raise UsageError(
                f"{path} is another user's; set VLLM_CACHE_ROOT to a directory of yours"
            )
        path.chmod(0o700)
    except OSError as error:
        raise UsageError(f"cannot use {path} ({error.strerror}); set VLLM_CACHE_ROOT") from None
    return path


def start_of(pid: int) -> str:
    """The start time of a process, which makes its id unique; "" if it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        # A process that has ended and is not yet waited for counts as gone.
        return "" if fields[0] in "ZX" else f"{_BOOT_ID.read_text().strip()} {fields[_START_TIME]}"
    except (OSError, IndexError):
        return ""


def running() -> list[Server]:
    """The servers that are alive, the oldest first; what is left of others is removed."""
    found = []
    for path in folder().glob("*.json"):
        try:
            server = Server(**json.loads(path.read_text()))
        except (OSError, ValueError, TypeError):
            continue
        if server.is_alive:
            found.append(server)
        else:
            path.unlink(missing_ok=True)
    return sorted(found, key=lambda server: server.since)


@contextmanager
def starting() -> Iterator[None]:
    """Hold others back from starting a server meanwhile."""
    with open(folder() / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def start(model: str, arguments: Sequence[str]) -> Server:
    """Start a server that outlives this process and its terminal; it is not ready yet."""
    port = _free_port()
    command = [sys.executable, "-m", "vllm_lite", "serve", model, *arguments]
    command += ["--host", HOST, "--port", str(port)]
    log = os.open(folder() / f"{port}.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    finally:
        os.close(log)
    server = Server(model, list(arguments), port, process.pid, start_of(process.pid), time.time())
    server.path.touch(mode=0o600)
    server.path.write_text(json.dumps(asdict(server)))
    return server


def wait_ready(server: Server) -> None:
    """Until the server answers; raises ServerError with its last words where it ended."""
    while True:
        if not server.is_alive:
            server.path.unlink(missing_ok=True)
            raise ServerError(f"the server of {server.model} did not start: {_last_words(server)}")
        if server.is_ready:
            return
        with suppress(ChildProcessError):
            os.waitpid(server.pid, os.WNOHANG)
        time.sleep(_LOOK_EVERY)


def stop(server: Server, timeout: float, *, by_force: bool = False) -> None:
    """End a server, and wait until it has; raises ServerError where it has not in time."""
    try:
        handle = os.pidfd_open(server.pid)
    except ProcessLookupError:
        server.path.unlink(missing_ok=True)
        return
    try:
        # The handle is this process's whatever comes after: now its id cannot be reused.
        if server.is_alive:
            signal.pidfd_send_signal(handle, signal.SIGKILL if by_force else signal.SIGTERM)
    except ProcessLookupError:
        pass
    finally:
        os.close(handle)
    deadline = time.monotonic() + timeout
    while server.is_alive:
        if time.monotonic() > deadline:
            raise ServerError(
                f"{server.model} (pid {server.pid}) still answers what it was asked after "
                f"{timeout:g} s; give it a longer --timeout, or --force"
            )
        with suppress(ChildProcessError):
            os.waitpid(server.pid, os.WNOHANG)
        time.sleep(_LOOK_EVERY)
    server.path.unlink(missing_ok=True)


def _free_port() -> int:
    """The port that clients look at by default where it is free, else any."""
    for port in (_PORT, 0):
        with socket.socket() as probe, suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((HOST, port))
            return int(probe.getsockname()[1])
    raise ServerError("no port of the loopback is free")


def _last_words(server: Server) -> str:
    """The line in its log that says why it ended."""
    try:
        lines = server.log.read_text(errors="replace").splitlines()
    except OSError:
        lines = []
    errors = [line.partition("error: ")[2] for line in lines if "error: " in line]
    kept = [line for line in lines if line.strip()]
    return (errors or kept or ["it said nothing"])[-1] + f" (log: {server.log})"
