"""A rank's life after its process is set up: load the model, run what the executor sends."""

from __future__ import annotations

import gc
from contextlib import nullcontext
from multiprocessing.connection import Connection

from vllm_lite.distributed.groups import tensor_parallel
from vllm_lite.distributed.shared_memory import SharedMemoryGroup
from vllm_lite.executor.rank_messages import RankJob, RunStep, decode, encode
from vllm_lite.worker.worker import Worker

__all__ = ["SharedMemoryGroup", "serve"]


def serve(job: RankJob, group: SharedMemoryGroup, connection: Connection) -> None:
    """Load the model, then run steps and commands for ever."""
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
                # Objects made at start live for ever: spare the collector looking at them again.
                gc.collect()
                gc.freeze()
