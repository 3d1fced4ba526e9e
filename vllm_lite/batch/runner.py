"""Keeps the engine full with lines and the journal filled with their records.

Knows the engine only through the endpoints. Invariant: no more than `num_in_flight` lines are
in memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

from vllm_lite.batch.endpoints import Answer, Endpoints
from vllm_lite.batch.journal import Journal
from vllm_lite.batch.lines import BatchLine, parse_line

# Seconds until a line that found the engine's queue full comes back.
RETRY_INTERVAL = 0.1
_TOO_MANY_REQUESTS = 429


class BatchRunner:
    """Runs the lines of one batch that its journal does not hold yet."""

    def __init__(
        self,
        endpoints: Endpoints,
        journal: Journal,
        num_in_flight: int,
        on_done: Callable[[], object],
    ) -> None:
        """`on_done` is called after each line."""
        self._endpoints = endpoints
        self._journal = journal
        self._num_in_flight = num_in_flight
        self._on_done = on_done
        # Lines that the engine has, not counting those that wait to be let in.
        self._num_running = 0

    async def run(self, lines: Iterator[tuple[int, bytes]]) -> None:
        """Answer every line of `lines`; raises EngineDeadError, and UsageError on a full disk."""
        workers = [asyncio.create_task(self._work(lines)) for _ in range(self._num_in_flight)]
        try:
            for done in asyncio.as_completed(workers):
                await done
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)

    async def _work(self, lines: Iterator[tuple[int, bytes]]) -> None:
        for number, raw in lines:
            if self._journal.has(number):
                continue
            line = parse_line(number, raw)
            answer = await self._answer(line)
            record = answer.record(line.custom_id)
            self._journal.append(number, record, failed=answer.error is not None)
            self._on_done()
            # A run of bad lines must not keep the others from their outputs.
            await asyncio.sleep(0)

    async def _answer(self, line: BatchLine) -> Answer:
        while True:
            self._num_running += 1
            try:
                answer = await self._endpoints.answer(line)
            finally:
                self._num_running -= 1
            # Refused while nothing else runs, it would be refused for ever.
            if answer.status != _TOO_MANY_REQUESTS or not self._num_running:
                return answer
            await asyncio.sleep(RETRY_INTERVAL)
