"""An engine core in a child process, as its parent sees it; the child runs engine/core/__main__."""

from __future__ import annotations

import weakref

import msgspec

from vllm_lite.config.vllm import VllmConfig
from vllm_lite.engine.link.channel import Heartbeat
from vllm_lite.engine.link.core_handle import StartedCore
from vllm_lite.engine.link.messages import CoreJob
from vllm_lite.engine.link.spawn import allow_open_files, discard_spawned, spawn_core


class CoreProcess(StartedCore):
    """An engine core in a child process, which starts to import at once."""

    def __init__(self, num_front_ends: int = 1) -> None:
        self._spawned = spawn_core()
        super().__init__(
            self._spawned.end,
            Heartbeat(self._spawned.heartbeat_fd),
            self._spawned.exit_fd,
            num_front_ends,
        )
        # Of a handle that was not stopped, at exit or when it is collected.
        self._finalizer = weakref.finalize(self, self._spawned.child.kill)

    @property
    def pid(self) -> int:
        return self._spawned.process.pid

    def start(self, config: VllmConfig) -> None:
        # A core that waits for a GPU or for ranks may use no processor meanwhile.
        self.computes_itself = config.device == "cpu" and not config.parallel.has_ranks
        self.watched_pid = self.pid
        encode = msgspec.msgpack.encode
        job = CoreJob(msgspec.Raw(encode(config)), self.num_front_ends)
        self.further_ends = self._spawned.give(encode(job), self.num_front_ends)

    def kill(self) -> None:
        self._spawned.child.kill()
        self._spawned.child.ended.wait()

    def exit_cause(self) -> str:
        return self._spawned.child.exit_cause()


def launch_core(
    config: VllmConfig,
    *,
    in_process: bool = False,
    num_front_ends: int = 1,
) -> StartedCore:
    """Start an engine core in a child process, or in a thread of this one, and return at once.

    Only a child can have several front ends. Raises UsageError where too few files may be opened.
    """
    if in_process:
        # Imported here: it needs modules of the engine core that only a core's process has.
        from vllm_lite.engine.link.inproc_client import CoreThread

        allow_open_files()
        discard_spawned()
        handle: StartedCore = CoreThread()
    else:
        handle = CoreProcess(num_front_ends)
    handle.start(config)
    return handle
