"""The engine requests behind HTTP requests: whose they are, and that they end with their reader.

The tenant, trace and id of an HTTP request belong to the task that serves it, so that every
route gives the engine the same. A tenant is a hash; neither key nor user can be read from it.
Invariant: after `close()` nothing of a Generation runs in the engine, whether or not its outputs
were ever read.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
from collections.abc import AsyncIterator, Collection, Coroutine, Sequence
from contextvars import ContextVar
from dataclasses import replace
from typing import Any, Generic, TypeVar

from starlette.datastructures import Headers
from starlette.types import Receive

from vllm_lite.engine.client import NOBODY, EngineClient, Origin, Prompt
from vllm_lite.errors import UnavailableError
from vllm_lite.log import init_logger
from vllm_lite.outputs import AnyOutput, PoolingOutput, PoolingRequestOutput, RequestOutput
from vllm_lite.pooling_params import PoolingParams
from vllm_lite.sampling_params import SamplingParams
from vllm_lite.server.errors import AuthenticationError

logger = init_logger(__name__)

T = TypeVar("T")
# The outputs of a generation are of one kind.
Output = TypeVar("Output", bound=AnyOutput)
# Prompts that are checked before others get the event loop.
_PROMPTS_A_TURN = 64
Vector = PoolingRequestOutput[PoolingOutput]
# The headers of W3C's trace context.
_TRACE_HEADERS = ("traceparent", "tracestate")
_MAX_TRACE_HEADER = 512
_origin: ContextVar[Origin] = ContextVar("origin", default=NOBODY)
_request_id: ContextVar[str] = ContextVar("request_id", default="")


def tenant_of(name: str | bytes) -> str:
    """The tenant that a key or a user's name stands for."""
    return hashlib.sha256(name if isinstance(name, bytes) else name.encode()).hexdigest()[:32]


def begin_request(tenant: str, headers: Headers) -> None:
    """Serve a request of `tenant` ("" where no key was asked for) in this task from here on."""
    found = {name: headers[name] for name in _TRACE_HEADERS if name in headers}
    trace = {name: text for name, text in found.items() if len(text) <= _MAX_TRACE_HEADER}
    _origin.set(Origin(tenant, trace))


def note_user(user: object) -> None:
    """Take the user that a body names as the tenant, unless the request came with a key."""
    origin = _origin.get()
    if isinstance(user, str) and user and not origin.tenant:
        _origin.set(replace(origin, tenant=tenant_of(user)))


def current_request_id() -> str:
    """The id of the request that this task serves; "" where it has none."""
    return _request_id.get()


def note_request_id(request_id: str) -> None:
    _request_id.set(request_id)


def current_origin() -> Origin:
    """The origin of the request that this task serves; NOBODY outside of any."""
    return _origin.get()


class ClientLeftError(Exception):
    """The client closed its connection before it was answered."""


async def run_while_connected(receive: Receive, work: Coroutine[object, object, T]) -> T:
    """The result of `work`; cancels it and raises ClientLeftError once the client has left.

    `receive` is the request's ASGI channel, its body already read.
    """
    worker, has_left = asyncio.current_task(), False
    assert worker is not None

    async def watch() -> None:
        nonlocal has_left
        with contextlib.suppress(Exception):
            await _wait_for_disconnect(receive)
        has_left = True
        worker.cancel()

    watcher = asyncio.ensure_future(watch())
    try:
        return await work
    except asyncio.CancelledError:
        if has_left and not worker.uncancel():
            raise ClientLeftError from None
        raise
    finally:
        watcher.cancel()


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class Generation(Generic[Output]):
    """One HTTP request's prompts in the engine; iterate for (prompt index, output)."""

    def __init__(
        self,
        registry: Generations,
        request_ids: list[str],
        iterators: list[AsyncIterator[Output]],
    ) -> None:
        self._registry = registry
        self.request_ids = request_ids
        self._iterators = iterators
        self._tasks: list[asyncio.Task[None]] = []
        # Ended by itself, well or not.
        self.has_ended = False

    async def __aiter__(self) -> AsyncIterator[tuple[int, Output]]:
        """Outputs of all prompts as they come; raises what any of them raises."""
        try:
            async for item in self._merged():
                yield item
        except Exception:
            self.has_ended = True
            raise
        self.has_ended = True

    async def _merged(self) -> AsyncIterator[tuple[int, Output]]:
        if len(self._iterators) == 1:
            async for output in self._iterators[0]:
                yield 0, output
            return
        queue: asyncio.Queue[tuple[int, Output | BaseException | None]] = asyncio.Queue()
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

    async def last_outputs(self) -> list[Output]:
        last: dict[int, Output] = {}
        async for index, output in self:
            last[index] = output
        return [last[index] for index in range(len(self._iterators))]

    async def finish(self, receive: Receive, work: Coroutine[object, object, T]) -> T:
        """The result of `work`, which reads these outputs for the client behind `receive`.

        Closes the generation; raises ClientLeftError once the client has left.
        """
        try:
            return await run_while_connected(receive, work)
        finally:
            await self.close()

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
    outputs: AsyncIterator[Output],
    queue: asyncio.Queue[tuple[int, Output | BaseException | None]],
) -> None:
    try:
        async for output in outputs:
            queue.put_nowait((index, output))
    except Exception as error:
        queue.put_nowait((index, error))
    else:
        queue.put_nowait((index, None))


def _ids_of(request_id: str, count: int) -> list[str]:
    """The engine's ids of a request's prompts."""
    return [request_id] if count == 1 else [f"{request_id}-{i}" for i in range(count)]


DRAINING = "The server is shutting down and takes no new requests"


class Generations:
    """Every generation that runs, and whether new ones are admitted."""

    def __init__(self, client: EngineClient, *, tells_of_aborts: bool = False) -> None:
        self._client = client
        self._tells_of_aborts = tells_of_aborts
        self._running: set[Generation[Any]] = set()
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
    ) -> Generation[RequestOutput]:
        """Put every prompt into the engine, or none.

        Raises what the engine's generate() raises; the caller has to close the result.
        """
        self.check_open()
        ids = _ids_of(request_id, len(prompts))
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

    async def encode(
        self,
        prompts: Sequence[Prompt],
        params: Sequence[PoolingParams],
        request_id: str,
        *,
        priority: int = 0,
        cache_salt: str | None = None,
    ) -> Generation[Vector]:
        """The same for vectors of prompts, each with parameters of its own."""
        ids, iterators = _ids_of(request_id, len(prompts)), []
        for index, (prompt, own) in enumerate(zip(prompts, params, strict=True)):
            if index % _PROMPTS_A_TURN == 0:
                if index:
                    await asyncio.sleep(0)
                self.check_open()
            iterators.append(
                self._client.encode(
                    prompt,
                    own,
                    ids[index],
                    priority=priority,
                    cache_salt=cache_salt,
                    origin=current_origin(),
                )
            )
        return self.run(ids, iterators)

    def run(
        self, request_ids: list[str], iterators: list[AsyncIterator[Output]]
    ) -> Generation[Output]:
        """Count what runs in the engine under these ids; the caller has to close the result."""
        generation = Generation(self, request_ids, iterators)
        self._running.add(generation)
        self._idle.clear()
        return generation

    def forget(self, generation: Generation[Any]) -> bool:
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


class ApiKeys:
    """The keys that open the guarded routes; without any, everything is open."""

    def __init__(self, keys: Sequence[str]) -> None:
        self._keys = [(key.encode(), tenant_of(key)) for key in keys if key]

    def check(self, headers: Headers) -> str:
        """Raise AuthenticationError unless the request brings one of the keys.

        Returns the tenant that the key stands for, "" where no key is asked for.
        """
        if not self._keys:
            return ""
        tenant = ""
        for candidate in (_bearer(headers), headers.get("x-api-key", "")):
            # Headers are latin-1 to Starlette; a key may hold any UTF-8.
            given = candidate.strip().encode("latin-1", "replace")
            for key, owner in self._keys:
                # Compare every key, so that the time does not reveal which one fits.
                tenant = owner if hmac.compare_digest(given, key) else tenant
        if not tenant:
            raise AuthenticationError(
                "The API key is missing or wrong; send the header Authorization: Bearer <key>"
            )
        return tenant


def _bearer(headers: Headers) -> str:
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token if scheme.lower() == "bearer" else ""
