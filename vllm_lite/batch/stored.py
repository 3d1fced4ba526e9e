"""Runs the batches of /v1/batches beside a server's own requests, in one process of a server.

Invariants: whenever it ends, an unfinished batch is in the store as it is, and continues when the
directory is served next; a row's result is in the journal before anything tells of it, so that no
row runs twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from starlette.datastructures import Headers

from vllm_lite.batch.journal import Journal
from vllm_lite.batch.lines import Scan, faults_of, parse_line, read_lines, scan
from vllm_lite.batch.runner import Answer, BatchRunner, Endpoints, Turns
from vllm_lite.config.server import ServerConfig
from vllm_lite.errors import EngineDeadError, UsageError
from vllm_lite.log import init_logger
from vllm_lite.server.context import ServingContext
from vllm_lite.server.generation import begin_request, tenant_of
from vllm_lite.server.openai.batches.store import (
    ENDED,
    MAX_ROWS,
    BatchRecord,
    BatchStore,
    FileRecord,
)

logger = init_logger(__name__)

# Seconds between two records of how far a batch is.
TOLD_EVERY = 1.0
_MAX_FAULTS = 100
_EXPIRED = {"code": "batch_expired", "message": "The batch expired before this row was run"}
# Batches that share the turns; others wait.
MAX_RUNNING = 8
# Of the requests that can run at once, how many may be rows: while no client asks for anything,
# and beside clients' requests.
_SHARE, _SHARE_BESIDE = 8, 32
# Behind every request whose client did not ask for less.
_LAST = ((b"x-vllm-priority", str((1 << 31) - 1).encode()),)
# Seconds between two looks for what has expired.
_SWEPT_EVERY = 3600.0


class StoredRun:
    """Runs a batch to its end, or until its task is cancelled; then another may go on."""

    def __init__(
        self, store: BatchStore, record: BatchRecord, endpoints: Endpoints, turns: Turns, model: str
    ) -> None:
        self.record = record
        self._store = store
        self._endpoints = endpoints
        self._turns = turns
        self._model = model
        self._is_ended_early = asyncio.Event()
        if record.status == "cancelling":
            self.cancel()

    def cancel(self) -> None:
        """End the batch with the rows that are done."""
        self.record.times.setdefault("cancelling", int(time.time()))
        self._is_ended_early.set()

    async def run(self) -> None:
        """Raises EngineDeadError, and UsageError or OSError where results cannot be kept."""
        record = self.record
        whole = await asyncio.to_thread(self._check)
        if whole is not None:
            await self._answer(whole)
        await asyncio.to_thread(self._store.settle, record)
        logger.info(
            "Batch %s is %s: %d of %d rows done, %d of them errors",
            *(record.id, record.status, record.num_done, record.num_rows, record.num_failed),
            extra={"batch_id": record.id},
        )

    def _check(self) -> Scan | None:
        """The rows as a whole; None where the batch has failed for them."""
        path = self._store.input_of(self.record)
        try:
            faults = faults_of(path, self.record.endpoint, MAX_ROWS, _MAX_FAULTS)
        except FileNotFoundError:
            faults = [_fault("missing_input", "The batch's rows are gone")]
        if faults:
            self._fail(faults)
            return None
        return scan(path)

    def _fail(self, faults: list[dict[str, Any]]) -> None:
        self.record.errors = faults
        self.record.turn("failed")

    def _open_journal(self, whole: Scan) -> Journal | None:
        """The finished rows; None if the batch failed because another model began it."""
        path = self._store.journal_of(self.record)
        try:
            return Journal(path, whole.digest, self._model, whole.last_number, resume=True)
        except UsageError as error:
            logger.error("Batch %s failed: %s", self.record.id, error)
            message = "The server has another model than the one that the batch began with"
            self._fail([_fault("model_changed", message)])
            return None

    async def _answer(self, whole: Scan) -> None:
        record = self.record
        found = self._open_journal(whole)
        if found is None:
            return
        with found as journal:
            record.num_rows = whole.num_lines
            if record.status == "validating":
                record.turn("in_progress")
            await asyncio.to_thread(self._tell, journal)
            await self._run_rows(journal)
            status = "completed"
            if journal.num_done < whole.num_lines:
                status = "cancelled" if self._is_ended_early.is_set() else "expired"
            if status == "completed":
                record.turn("finalizing")
            await asyncio.to_thread(self._tell, journal)
            await asyncio.to_thread(self._store_results, journal, status == "expired")
            record.turn(status)

    async def _run_rows(self, journal: Journal) -> None:
        """Until all rows are done, or the batch is to end."""
        rows = read_lines(self._store.input_of(self.record))
        runner = BatchRunner(self._endpoints, journal, self._turns.most, lambda: None, self._turns)
        running = asyncio.create_task(runner.run(rows))
        early = asyncio.create_task(self._is_ended_early.wait())
        try:
            while not (running.done() or early.done()):
                left = self.record.expires_at - time.time()
                if left <= 0:
                    return
                await asyncio.wait(
                    (running, early),
                    timeout=min(left, TOLD_EVERY),
                    return_when=asyncio.FIRST_COMPLETED,
                )
                if self.record.num_done != journal.num_done:
                    await asyncio.to_thread(self._tell, journal)
            if running.done():
                running.result()
        finally:
            running.cancel()
            early.cancel()
            await asyncio.gather(running, early, return_exceptions=True)

    def _tell(self, journal: Journal) -> None:
        self.record.num_done, self.record.num_failed = journal.num_done, journal.num_failed
        self._store.save(self.record)

    def _store_results(self, journal: Journal, with_expired: bool) -> None:
        """Make files of the records, those of rows that failed apart."""
        record = self.record
        if journal.num_done > journal.num_failed:
            record.output_file_id = self._store_lines("output", journal.records(failed=False))
        if journal.num_failed or with_expired:
            lines = self._errors(journal, with_expired)
            record.error_file_id = self._store_lines("error", lines)

    def _errors(self, journal: Journal, with_expired: bool) -> Iterator[bytes]:
        yield from journal.records(failed=True)
        if with_expired:
            for number, raw in read_lines(self._store.input_of(self.record)):
                if not journal.has(number):
                    yield Answer(0, error=_EXPIRED).record(parse_line(number, raw).custom_id)

    def _store_lines(self, kind: str, lines: Iterator[bytes]) -> str:
        """The id of a file of these lines: the same one, however often a batch ends."""
        batch_id, now = self.record.id, time.time()
        name = hashlib.blake2b(f"{batch_id} {kind}".encode(), digest_size=16).hexdigest()
        found = FileRecord(
            id=f"file-{name}",
            owner=self.record.owner,
            filename=f"{batch_id}_{kind}.jsonl",
            purpose="batch_output",
            bytes=0,
            created=now,
            expires_at=int(now) + self.record.keep,
        )
        return self._store.add_file(found, (line + b"\n" for line in lines)).id


def _fault(code: str, message: str) -> dict[str, Any]:
    return {"code": code, "line": None, "message": message, "param": None}


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
