"""The engine core as a process of its own: `python -m vllm_lite.engine.core`.

SpawnedCore passes the descriptors of a socket and of the heartbeat, and the parent's pid, as
arguments, and later a CoreJob on standard input. The process dies with its parent and leaves every
other signal to it.
"""

from __future__ import annotations

import gc
import signal
import sys

if __name__ == "__main__":
    # Modules and weights stay: to look for garbage among them takes up to 0.3 s of a start.
    gc.disable()

import msgspec

from vllm_lite.config.vllm import VllmConfig
from vllm_lite.engine.core.engine_core import EngineCore
from vllm_lite.engine.core.loop import CoreLoop
from vllm_lite.engine.link.channel import CoreChannel, Heartbeat
from vllm_lite.engine.link.messages import CoreJob
from vllm_lite.engine.link.spawn import sockets_of
from vllm_lite.executor.select import make_executor
from vllm_lite.lifeline import die_with_parent
from vllm_lite.log import make_stderr_lossy, set_process_name
from vllm_lite.platform import bind_compute_threads

# Seconds that the last message, with the cause of death in it, may take to leave.
LINGER = 2.0


def build_core(config: VllmConfig) -> EngineCore:
    """Load the model."""
    config.logging.apply()
    if not config.parallel.has_ranks:
        # Before torch is imported: its threads inherit the mask of the one that starts them.
        bind_compute_threads()
    try:
        return EngineCore(config, make_executor)
    finally:
        gc.enable()


def main(arguments: list[str]) -> int:
    """Run one engine core until Shutdown; returns the exit code."""
    channel_fd, heartbeat_fd, parent_pid = map(int, arguments)
    die_with_parent(parent_pid)
    make_stderr_lossy()
    # A signal to the whole tree is for the parent, which drains and then stops its child.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    set_process_name("EngineCore")

    decode = msgspec.msgpack.decode
    given = sys.stdin.buffer.read()
    if not given:
        return 0  # The parent found a mistake in its options.
    job = decode(given, type=CoreJob)
    channel = CoreChannel(sockets_of(channel_fd, job.num_front_ends))
    error = CoreLoop(channel, Heartbeat(heartbeat_fd)).run(
        lambda: build_core(decode(job.config, type=VllmConfig))
    )
    channel.close(LINGER)
    return 0 if error is None else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
