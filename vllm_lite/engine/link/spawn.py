"""The process of an engine core, spawned: it imports at once, and waits for a CoreJob.

Imports little, so that `vllm-lite serve` can spawn before it has read its options.
"""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import tempfile

from vllm_lite import envs
from vllm_lite.errors import EngineDeadError, UsageError
from vllm_lite.lifeline import ChildProcess

# Bytes of the heartbeat's memory.
HEARTBEAT_SIZE = 16
# Files that an engine's processes open before the first client comes, and that many clients take.
_FEWEST_FILES, _ENOUGH_FILES = 96, 65535
# The message that a descriptor comes with.
_FOLLOWS = b"s"


class SpawnedCore:
    """The child, a socket to it, its heartbeat, and a descriptor that is readable once it ended."""

    def __init__(self) -> None:
        """Raises UsageError where too few files may be opened, EngineDeadError without a child."""
        allow_open_files()
        self.exit_fd, exit_writer = os.pipe()
        self.heartbeat_fd = heartbeat_memory()
        self.end, theirs = socket.socketpair()
        environment = envs.module_environment()
        # Waiting OpenMP threads sleep: on a crowded machine spinning ones starve the rest.
        environment.setdefault("OMP_WAIT_POLICY", "PASSIVE")
        environment.setdefault("GOMP_SPINCOUNT", "1000")
        self.child = ChildProcess(
            "vllm_lite.engine.core",
            [str(theirs.fileno()), str(self.heartbeat_fd), str(os.getpid())],
            pass_fds=(theirs.fileno(), self.heartbeat_fd),
            environment=environment,
            exit_writer=exit_writer,
        )
        theirs.close()
        if self.child.process is None:
            os.close(self.exit_fd)
            os.close(self.heartbeat_fd)
            self.end.close()
            raise EngineDeadError(f"The engine core could not be started: {self.child.error}")
        self.process = self.child.process

    def give(self, job: bytes, num_front_ends: int) -> list[socket.socket]:
        """Begin to load: the child reads its job. Gives the sockets of further front ends."""
        pairs = [socket.socketpair() for _ in range(1, num_front_ends)]
        with contextlib.suppress(ConnectionError):  # a child that is gone shows elsewhere
            for _, theirs in pairs:
                socket.send_fds(self.end, [_FOLLOWS], [theirs.fileno()])
        for _, theirs in pairs:
            theirs.close()
        self.child.give(job)
        return [end for end, _ in pairs]


def sockets_of(descriptor: int, num_front_ends: int) -> list[socket.socket]:
    """In the child: the sockets to all front ends."""
    first = socket.socket(fileno=descriptor)
    ends = [first]
    for _ in range(1, num_front_ends):
        _, descriptors, _, _ = socket.recv_fds(first, len(_FOLLOWS), 1)
        ends.append(socket.socket(fileno=descriptors[0]))
    return ends


_ahead: SpawnedCore | None = None


def spawn_ahead() -> None:
    """Spawn the core that the next spawn_core() gives."""
    global _ahead
    _ahead = SpawnedCore()


def spawn_core() -> SpawnedCore:
    """The core that was spawned ahead, once, else a new one."""
    global _ahead
    spawned, _ahead = _ahead, None
    return spawned or SpawnedCore()


def discard_spawned() -> None:
    """End the core that was spawned ahead, which nobody wants."""
    if _ahead is not None:
        spawn_core().child.kill()


def heartbeat_memory() -> int:
    """A descriptor of new memory that processes can share; the caller closes it."""
    with tempfile.TemporaryFile() as file:
        file.truncate(HEARTBEAT_SIZE)
        return os.dup(file.fileno())


def allow_open_files() -> None:
    """Raise the limit of open files as far as this user may; UsageError where that is too few."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _ENOUGH_FILES if hard == resource.RLIM_INFINITY else min(_ENOUGH_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = wanted
    if soft != resource.RLIM_INFINITY and soft < _FEWEST_FILES:
        raise UsageError(
            f"This process may open only {soft} files, an engine needs {_FEWEST_FILES} and more "
            "for its clients; raise the limit (ulimit -n)"
        )
