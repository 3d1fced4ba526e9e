"""One rank of a tensor-parallel group: `python -m vllm_lite.executor.rank_process`.

Started by MultiprocExecutor with its rank, the parent's pid and the descriptors of its connection,
of the pipe for reports and of the group's memory as arguments, and a RankJob on standard input.
Holds a Worker, which runs the steps that all ranks get; each samples the same tokens of the same
logits, and the first tells them. Dies with its parent, and leaves every other signal to it.
"""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
from contextlib import nullcontext
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING

import msgspec

from vllm_lite.errors import UsageError
from vllm_lite.lifeline import die_with_parent
from vllm_lite.log import init_logger, make_stderr_lossy, set_process_name
from vllm_lite.platform import bind_compute_threads

if TYPE_CHECKING:
    from vllm_lite.distributed.shared_memory import SharedMemoryGroup
    from vllm_lite.executor.rank_messages import RankJob

logger = init_logger(__name__)


def serve(job: RankJob, group: SharedMemoryGroup, connection: Connection) -> None:
    """Load the model, then do what is asked for, for ever."""
    from vllm_lite.distributed.groups import tensor_parallel
    from vllm_lite.executor.rank_messages import RunStep, decode, encode
    from vllm_lite.worker.worker import Worker

    with tensor_parallel(group) if job.size > 1 else nullcontext():
        worker = Worker(job.config)
        connection.send_bytes(encode(None))
        while True:
            message = decode(connection.recv_bytes())
            if isinstance(message, RunStep):
                output = worker.submit(message.step).get()
                if group.rank == 0:
                    connection.send_bytes(encode(output))
            else:
                connection.send_bytes(encode(message.run(worker)))
                # What start-up made lives for ever: spare the collector looking at it again.
                gc.collect()
                gc.freeze()


def main(arguments: list[str]) -> int:
    """Run one rank until its parent ends it; the exit code where it fails."""
    rank, parent_pid, connection_fd, reports_fd, group_fd = map(int, arguments)
    die_with_parent(parent_pid)
    make_stderr_lossy()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    set_process_name(f"Worker_TP{rank}")
    group: SharedMemoryGroup | None = None
    try:
        # Before torch: its threads take over the mask of the one that starts them.
        bind_compute_threads(rank)
        from vllm_lite.distributed.shared_memory import SharedMemoryGroup
        from vllm_lite.executor.rank_messages import RankJob

        job = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=RankJob)
        job.config.logging.apply()
        if rank > 0:
            # What it would tell, the first rank tells.
            logging.getLogger("vllm_lite").setLevel(logging.WARNING)
        group = SharedMemoryGroup(group_fd, rank, job.size)
        serve(job, group, Connection(connection_fd))
    except BaseException as error:
        if group is None or group.failed_rank is None:
            _report(rank, error, reports_fd)
            if group is not None:
                group.fail()
    return 1


def _report(rank: int, error: BaseException, reports_fd: int) -> None:
    from vllm_lite.executor.rank_messages import MAX_REPORT, Report

    if not isinstance(error, UsageError):
        logger.exception("Rank %d ends", rank)
    text = " ".join(str(error).split()) or "no message"
    report = Report(rank, type(error).__name__, text.encode()[:MAX_REPORT].decode(errors="ignore"))
    os.write(reports_fd, msgspec.json.encode(report) + b"\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
