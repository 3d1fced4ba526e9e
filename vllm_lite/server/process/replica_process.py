"""One more process of a server, started with its parent's pid as its argument.

Started by `replicas.Replicas` with a ReplicaJob as msgpack on standard input. Serves as the first
process does, on a socket and an engine core that it inherits, and dies with that process.
"""

from __future__ import annotations

import signal
import sys

import msgspec

from vllm_lite.errors import EngineDeadError, VLLMLiteError
from vllm_lite.lifeline import die_with_parent
from vllm_lite.log import init_logger, make_stderr_lossy, set_process_name

# Run as a module, this one has no name of its own.
logger = init_logger("vllm_lite.server.process.replica_process")


def main(arguments: list[str]) -> int:
    """Serve until stopped; returns the exit code.

    The parent hears of an engine's failure too and reports it, once.
    """
    die_with_parent(int(arguments[0]))
    make_stderr_lossy()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Imported here: the process must die with its parent during the imports, too.
    from vllm_lite.server.process import serving

    job = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=serving.ReplicaJob)
    set_process_name(f"APIServer_{job.index}")
    job.config.logging.apply()
    try:
        client = serving.join_engine(job)
    except VLLMLiteError:
        return 1
    try:
        serving.serve_replica(job, client)
    except EngineDeadError:
        return 1
    except VLLMLiteError as error:
        logger.error("%s", error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
