"""One stored batch from its rows to its files of results.

Knows the store, and the engine only through the endpoints. Invariant: a row's result is in the
journal before anything tells of it, so that whoever runs the batch again runs no row twice.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Iterator
from typing import Any

from vllm_lite.batch.endpoints import Answer, Endpoints
from vllm_lite.batch.journal import Journal
from vllm_lite.batch.lines import Scan, faults_of, parse_line, read_lines, scan
from vllm_lite.batch.runner import BatchRunner
from vllm_lite.batch.turns import Turns
from vllm_lite.errors import UsageError
from vllm_lite.log import init_logger
from vllm_lite.server.openai.batches.store import MAX_ROWS, BatchRecord, BatchStore, FileRecord

logger = init_logger(__name__)

# Seconds between two records of how far a batch is.
TOLD_EVERY = 1.0
_MAX_FAULTS = 100
_EXPIRED = {"code": "batch_expired", "message": "The batch expired before this row was run"}


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
