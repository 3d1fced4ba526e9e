"""One rank of a tensor-parallel group: `python -m vllm_lite.executor.rank_process`.

MultiprocExecutor passes its rank, the parent's pid and the descriptors of its connection, of the
pipe for reports and of the group's memory as arguments, and a RankJob on standard input. All ranks
run the same steps and sample the same tokens; the first answers. The process dies with its parent
and leaves every other signal to it.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING

import msgspec

from vllm_lite.errors import UsageError
from vllm_lite.executor.rank_messages import MAX_REPORT, RankJob, Report
from vllm_lite.lifeline import die_with_parent
from vllm_lite.log import init_logger, make_stderr_lossy, set_process_name
from vllm_lite.platform import bind_compute_threads

if TYPE_CHECKING:
    from vllm_lite.distributed.shared_memory import SharedMemoryGroup

logger = init_logger(__name__)


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
        # Before torch is imported: its threads inherit the mask of the one that starts them.
        bind_compute_threads(rank)
        from vllm_lite.executor.rank import SharedMemoryGroup, serve

        job = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=RankJob)
        job.config.logging.apply()
        if rank > 0:
            # The first rank logs the same.
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
    if not isinstance(error, UsageError):
        logger.exception("Rank %d ends", rank)
    text = " ".join(str(error).split()) or "no message"
    report = Report(rank, type(error).__name__, text.encode()[:MAX_REPORT].decode(errors="ignore"))
    os.write(reports_fd, msgspec.json.encode(report) + b"\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
