"""The engine requests behind HTTP requests: started together, merged, and always closed.

Knows no HTTP. Invariant: after `close()` nothing of a Generation runs in the engine, whether
or not its outputs were ever read.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Collection, Sequence

from vllm_lite.engine.client import EngineClient, Prompt
from vllm_lite.errors import UnavailableError
from vllm_lite.log import init_logger
from vllm_lite.outputs import RequestOutput
from vllm_lite.sampling_params import SamplingParams
from vllm_lite.server.origin import current_origin

logger = init_logger(__name__)


class Generation:
    """One HTTP request's prompts in the engine; iterate for (prompt index, output)."""

    def __init__(
        self,
        registry: Generations,
        request_ids: list[str],
        iterators: list[AsyncIterator[RequestOutput]],
    ) -> None:
        self._registry = registry
        self.request_ids = request_ids
        self._iterators = iterators
        self._tasks: list[asyncio.Task[None]] = []
        # Ended by itself, well or not.
        self.has_ended = False

    async def __aiter__(self) -> AsyncIterator[tuple[int, RequestOutput]]:
        """Outputs of all prompts as they come; raises what any of them raises."""
        try:
            async for item in self._merged():
                yield item
        except Exception:
            self.has_ended = True
            raise
        self.has_ended = True

    async def _merged(self) -> AsyncIterator[tuple[int, RequestOutput]]:
        if len(self._iterators) == 1:
            async for output in self._iterators[0]:
                yield 0, output
            return
        queue: asyncio.Queue[tuple[int, RequestOutput | BaseException | None]] = asyncio.Queue()
        self._tasks = [
            asyncio.create_task(_forward(index, iterator, queue))
            for index, iterator in enumerate(self._iterators)
        ]
        num_open = len(self._tasks)
        while num_open:
            index, item = await queue.get()
            if item is None:
                num_open -= 1
            elif isinstance(item, BaseException):
                raise item
            else:
                yield index, item

    async def last_outputs(self) -> list[RequestOutput]:
        """The last output of every prompt, in order."""
        last: dict[int, RequestOutput] = {}
        async for index, output in self:
            last[index] = output
        return [last[index] for index in range(len(self._iterators))]

    async def close(self) -> None:
        """Abort what still runs; safe to call twice."""
        if not self._registry.forget(self):
            return
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for iterator in self._iterators:
            close = getattr(iterator, "aclose", None)
            if close is not None:
                # An iterator that is being read cannot be closed; its reader's end closes it.
                with contextlib.suppress(RuntimeError):
                    await close()


async def _forward(
    index: int,
    outputs: AsyncIterator[RequestOutput],
    queue: asyncio.Queue[tuple[int, RequestOutput | BaseException | None]],
) -> None:
    try:
        async for output in outputs:
            queue.put_nowait((index, output))
    except Exception as error:
        queue.put_nowait((index, error))
    else:
        queue.put_nowait((index, None))


DRAINING = "The server is shutting down and takes no new requests"


class Generations:
    """Every generation that runs, and whether new ones are admitted."""

    def __init__(self, client: EngineClient, *, tells_of_aborts: bool = False) -> None:
        self._client = client
        self._tells_of_aborts = tells_of_aborts
        self._running: set[Generation] = set()
        self._preparing: set[asyncio.Future[None]] = set()
        self._idle = asyncio.Event()
        self._idle.set()
        self.is_draining = False

    def __len__(self) -> int:
        return len(self._running)

    def check_open(self) -> None:
        """Raise UnavailableError while the server drains."""
        if self.is_draining:
            raise UnavailableError(DRAINING)

    async def prepare(self, params: SamplingParams) -> None:
        """Have the constraint of `params` compiled; raises RequestError, also where it drains."""
        self.check_open()
        preparing = asyncio.ensure_future(self._client.prepare(params))
        self._preparing.add(preparing)
        try:
            await preparing
        except asyncio.CancelledError:
            if self.is_draining:
                raise UnavailableError(DRAINING) from None
            raise
        finally:
            preparing.cancel()
            self._preparing.discard(preparing)

    def start(
        self,
        prompts: Sequence[Prompt],
        params: SamplingParams,
        request_id: str,
        *,
        priority: int = 0,
        cache_salt: str | None = None,
    ) -> Generation:
        """Put every prompt into the engine, or none.

        Raises what the engine's generate() raises; the caller has to close the result.
        """
        self.check_open()
        single = len(prompts) == 1
        ids = [request_id if single else f"{request_id}-{i}" for i in range(len(prompts))]
        iterators = [
            self._client.generate(
                prompt,
                params,
                one_id,
                priority=priority,
                cache_salt=cache_salt,
                origin=current_origin(),
            )
            for prompt, one_id in zip(prompts, ids, strict=True)
        ]
        return self.run(ids, iterators)

    def run(
        self, request_ids: list[str], iterators: list[AsyncIterator[RequestOutput]]
    ) -> Generation:
        """Count what runs in the engine under these ids; the caller has to close the result."""
        generation = Generation(self, request_ids, iterators)
        self._running.add(generation)
        self._idle.clear()
        return generation

    def forget(self, generation: Generation) -> bool:
        """Whether `generation` was still counted; it no longer is."""
        known = generation in self._running
        self._running.discard(generation)
        if known and self._tells_of_aborts and not generation.has_ended:
            for request_id in generation.request_ids:
                logger.info("Request %s aborted.", request_id, extra={"request_id": request_id})
        if not self._running:
            self._idle.set()
        return known

    async def abort(self, request_ids: Collection[str] | None = None) -> int:
        """End what runs under these ids, or everything, with "abort"; how many there were."""
        ids = [i for running in self._running for i in running.request_ids]
        if request_ids is not None:
            ids = [i for i in ids if i in request_ids]
        await self._client.abort(ids)
        return len(ids)

    async def drain(self, timeout: float) -> None:
        """Admit nothing more, wait `timeout` seconds for what runs, then end it with "abort"."""
        self.is_draining = True
        for preparing in self._preparing:
            preparing.cancel()
        if timeout > 0 and await self.wait_idle(timeout):
            return
        await self.abort()

    async def wait_idle(self, timeout: float) -> bool:
        """Whether nothing runs any more, within `timeout` seconds."""
        try:
            await asyncio.wait_for(self._idle.wait(), timeout)
        except TimeoutError:
            return False
        return True
