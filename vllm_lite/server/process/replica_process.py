"""One more process of a server, started with its parent's pid as its argument.

Started by `replicas.Replicas` with a ReplicaJob as msgpack on standard input. Serves as the first
process does, on a socket and an engine core that it inherits, and dies with that process.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from vllm_lite.errors import EngineDeadError, VLLMLiteError
from vllm_lite.lifeline import die_with_parent
from vllm_lite.log import init_logger, make_stderr_lossy, set_process_name

if TYPE_CHECKING:
    from vllm_lite.engine.front.async_llm import AsyncLLM
    from vllm_lite.server.process.replicas import ReplicaJob

# Run as a module, this one has no name of its own.
logger = init_logger("vllm_lite.server.process.replica_process")


def main(arguments: list[str]) -> int:
    """Serve until told to stop; the exit code.

    What goes wrong with the engine its parent hears of too, and says it, once.
    """
    die_with_parent(int(arguments[0]))
    make_stderr_lossy()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Imported here, once the death signal is set.
    from vllm_lite.server.process.replicas import ReplicaJob

    job = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=ReplicaJob)
    set_process_name(f"APIServer_{job.index}")
    job.config.logging.apply()
    try:
        client = _join(job)
    except VLLMLiteError:
        return 1
    try:
        _serve(job, client)
    except EngineDeadError:
        return 1
    except VLLMLiteError as error:
        logger.error("%s", error)
        return 1
    return 0


def _join(job: ReplicaJob) -> AsyncLLM:
    """The engine, once it is ready; raises what keeps it from starting."""
    from vllm_lite.engine.front.async_llm import AsyncLLM
    from vllm_lite.engine.link.core_handle import JoinedCore
    from vllm_lite.metrics.board import Board

    core = JoinedCore(
        Path(job.directory),
        job.heartbeat_fd,
        job.core_exit_fd,
        job.index,
    )
    board = Board(job.board_fd, job.index, job.count)
    return AsyncLLM(job.config, core, board=board)


def _serve(job: ReplicaJob, client: AsyncLLM) -> None:
    import uvloop

    from vllm_lite.server.app import build_app
    from vllm_lite.server.process.garbage import settle
    from vllm_lite.server.process.launch import serve
    from vllm_lite.server.process.listen import Listener
    from vllm_lite.server.process.peers import Peers

    app = build_app(client, job.server_config, peers=Peers(job.index, job.peer_fds))
    settle()
    os.write(job.ready_fd, b"r")
    listener = Listener.inherited(job.server_config, job.listener_fd, job.url)
    uvloop.run(serve(client, app, job.server_config, listener))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
