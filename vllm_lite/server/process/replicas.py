"""Further processes that serve the same engine: started with the first, and ended with it.

Knows of a replica what it needs to run and how it ends; what it does is replica_process's.
Invariant: no replica outlives this process, and none dies unnoticed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from dataclasses import dataclass
from itertools import combinations

import msgspec

from vllm_lite import envs
from vllm_lite.config.server import ServerConfig
from vllm_lite.config.vllm import VllmConfig
from vllm_lite.engine.link.core_handle import StartedCore
from vllm_lite.errors import EngineDeadError
from vllm_lite.lifeline import ChildProcess
from vllm_lite.log import init_logger
from vllm_lite.metrics.board import Board
from vllm_lite.server.process.listen import Listener

logger = init_logger(__name__)


class ReplicaJob(msgspec.Struct):
    """The arguments of a replica; names that end in fd are descriptors it inherits."""

    index: int
    count: int
    config: VllmConfig
    server_config: ServerConfig
    url: str
    channel_fd: int
    heartbeat_fd: int
    core_exit_fd: int
    board_fd: int
    listener_fd: int
    ready_fd: int
    peer_fds: list[int]


@dataclass(slots=True)
class _Replica:
    child: ChildProcess
    exit_fd: int
    ready_fd: int


class Replicas:
    """The replicas of one server; none until `start`."""

    def __init__(self) -> None:
        self.peer_fds: list[int] = []
        self._replicas: list[_Replica] = []

    def start(
        self,
        config: VllmConfig,
        server_config: ServerConfig,
        core: StartedCore,
        listener: Listener,
        board: Board,
    ) -> None:
        """Start one for each further front end of `core`; they wait for it by themselves."""
        count = core.num_front_ends
        pairs = _socket_pairs(count)
        self.peer_fds = pairs[0]
        for index in range(1, count):
            exit_fd, exit_writer = os.pipe()
            ready_fd, ready_writer = os.pipe()
            job = ReplicaJob(
                index=index,
                count=count,
                config=config,
                server_config=server_config,
                url=listener.url,
                channel_fd=core.further_ends[index - 1].fileno(),
                heartbeat_fd=core.heartbeat.fd,
                core_exit_fd=core.exit_fd,
                board_fd=board.fd,
                listener_fd=listener.sockets[index].fileno(),
                ready_fd=ready_writer,
                peer_fds=pairs[index],
            )
            child = _start(job, exit_writer)
            self._replicas.append(_Replica(child, exit_fd, ready_fd))
            os.close(ready_writer)
        # What the replicas have inherited is theirs alone.
        for descriptors in pairs[1:]:
            for descriptor in descriptors:
                os.close(descriptor)
        for one in (*core.further_ends, *listener.sockets[1:]):
            one.close()

    async def wait_ready(self) -> None:
        """Wait until every replica serves or one has died, which `wait_death` reports."""
        await asyncio.gather(*(_readable(replica.ready_fd) for replica in self._replicas))

    async def wait_death(self) -> str:
        """How a replica ended; waits until one does."""
        waits = [asyncio.create_task(_readable(replica.exit_fd)) for replica in self._replicas]
        if not waits:
            await asyncio.get_running_loop().create_future()
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        causes = [h.child.exit_cause() for h in self._replicas if h.child.ended.is_set()]
        return causes[0] if causes else "it does not answer"

    def terminate(self) -> None:
        for replica in self._replicas:
            replica.child.terminate()

    async def wait_ended(self, timeout: float) -> None:
        """Until all have ended; what has not within `timeout` seconds is killed."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(
                asyncio.gather(*(_readable(replica.exit_fd) for replica in self._replicas)), timeout
            )
        self.kill()

    def kill(self) -> None:
        for replica in self._replicas:
            replica.child.kill()


def _start(job: ReplicaJob, exit_writer: int) -> ChildProcess:
    descriptors = (
        job.channel_fd,
        job.heartbeat_fd,
        job.core_exit_fd,
        job.board_fd,
        job.listener_fd,
        job.ready_fd,
        *job.peer_fds,
    )
    child = ChildProcess(
        "vllm_lite.server.process.replica_process",
        [str(os.getpid())],
        pass_fds=descriptors,
        environment=envs.module_environment(),
        exit_writer=exit_writer,
    )
    if child.process is None:
        raise EngineDeadError(f"An API server process could not be started: {child.error}")
    child.give(msgspec.msgpack.encode(job))
    return child


def _socket_pairs(count: int) -> list[list[int]]:
    """For each of `count` processes its ends of the pairs with all others."""
    ends: list[list[int]] = [[] for _ in range(count)]
    for one, other in combinations(range(count), 2):
        for index, end in zip((one, other), socket.socketpair(), strict=True):
            ends[index].append(end.detach())
    return ends


def _resolve(found: asyncio.Future[None]) -> None:
    if not found.done():
        found.set_result(None)


async def _readable(descriptor: int) -> None:
    """Until there is something to read, or an end."""
    loop = asyncio.get_running_loop()
    found: asyncio.Future[None] = loop.create_future()
    copy = os.dup(descriptor)
    loop.add_reader(copy, _resolve, found)
    try:
        await found
    finally:
        loop.remove_reader(copy)
        os.close(copy)
