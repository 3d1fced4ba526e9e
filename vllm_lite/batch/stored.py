"""Runs the batches of /v1/batches beside a server's own requests.

In one process of a server. Invariant: whenever it ends, an unfinished batch is in the store as
it is, and continues when the directory is served next.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from pathlib import Path

from starlette.datastructures import Headers

from vllm_lite.batch.endpoints import Endpoints
from vllm_lite.batch.stored_run import StoredRun
from vllm_lite.batch.turns import Turns
from vllm_lite.config.server import ServerConfig
from vllm_lite.errors import EngineDeadError, UsageError
from vllm_lite.log import init_logger
from vllm_lite.server.context import ServingContext
from vllm_lite.server.generation import begin_request, tenant_of
from vllm_lite.server.openai.batches.store import ENDED, BatchRecord, BatchStore

logger = init_logger(__name__)

# Batches that share the turns; others wait.
MAX_RUNNING = 8
# Of the requests that can run at once, how many may be rows: while no client asks for anything,
# and beside clients' requests.
_SHARE, _SHARE_BESIDE = 8, 32
# Behind every request whose client did not ask for less.
_LAST = ((b"x-vllm-priority", str((1 << 31) - 1).encode()),)
# Seconds between two looks for what has expired.
_SWEPT_EVERY = 3600.0


class StoredBatches:
    """The batches of a server's storage directory."""

    def __init__(self, server_config: ServerConfig) -> None:
        """Take the directory; raises UsageError where it cannot be used."""
        folder = Path(server_config.batch_storage_dir or "")
        self._store = BatchStore(folder, server_config.batch_storage_limit)
        self._lock, self._wake = self._store.own()
        self._runs: dict[str, tuple[StoredRun, asyncio.Task[None]]] = {}
        # Begun without coming to an end; the next start tries again.
        self._given_up: set[str] = set()
        self._task: asyncio.Task[None] | None = None

    def start(self, context: ServingContext) -> None:
        """Run what is there and what comes; the event loop runs."""
        limit = context.client.config.scheduler.active_seqs
        beside = context.apart()
        turns = Turns(
            max(1, limit // _SHARE),
            max(1, limit // _SHARE_BESIDE),
            lambda: len(context.generations) + context.client.num_unfinished_elsewhere,
        )
        self._task = asyncio.create_task(self._run(beside, turns), name="stored-batches")

    async def stop(self) -> None:
        """End what runs, to go on another time; calling it again does nothing."""
        task, self._task = self._task, None
        if task is None:
            return
        tasks = [task, *(one for _, one in self._runs.values())]
        for one in tasks:
            one.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        os.close(self._wake)
        os.close(self._lock)

    async def _run(self, context: ServingContext, turns: Turns) -> None:
        endpoints = Endpoints(context, _LAST)
        woken = asyncio.Event()
        asyncio.get_running_loop().add_reader(self._wake, self._on_wake, woken)
        try:
            while True:
                woken.clear()
                await asyncio.to_thread(self._store.drop_expired)
                await self._begin(context, endpoints, turns, woken)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(woken.wait(), _SWEPT_EVERY)
        finally:
            asyncio.get_running_loop().remove_reader(self._wake)

    async def _begin(
        self, context: ServingContext, endpoints: Endpoints, turns: Turns, woken: asyncio.Event
    ) -> None:
        """Begin what there is room for, and end what is to be cancelled."""
        found = await asyncio.to_thread(self._store.batches)
        known = self._runs.keys() | self._given_up
        waiting = [one for one in found if one.status not in ENDED and one.id not in known]
        for record in found:
            if record.status == "cancelling" and record.id in self._runs:
                self._runs[record.id][0].cancel()
        while waiting and len(self._runs) < MAX_RUNNING:
            record = self._next_of(waiting)
            waiting.remove(record)
            model = context.client.config.model.model
            run = StoredRun(self._store, record, endpoints, turns, model)
            task = asyncio.create_task(self._follow(run, woken), name=record.id)
            self._runs[record.id] = (run, task)

    def _next_of(self, waiting: list[BatchRecord]) -> BatchRecord:
        """The oldest of the key that has the fewest batches running."""
        owners = [run.record.owner for run, _ in self._runs.values()]
        return min(waiting, key=lambda one: (owners.count(one.owner), one.created))

    async def _follow(self, run: StoredRun, woken: asyncio.Event) -> None:
        """Run one batch, under a tenant that is its owner's for batches alone."""
        begin_request(tenant_of(f"batches of {run.record.owner}"), Headers())
        try:
            await run.run()
        except EngineDeadError:
            self._given_up.add(run.record.id)  # the server ends with it
        except (UsageError, OSError) as error:
            self._given_up.add(run.record.id)
            logger.error("Batch %s stands still until the next start: %s", run.record.id, error)
        except Exception:
            self._given_up.add(run.record.id)
            logger.exception("Batch %s failed unexpectedly", run.record.id)
        finally:
            del self._runs[run.record.id]
            woken.set()

    def _on_wake(self, woken: asyncio.Event) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake, 1 << 12)
        woken.set()
