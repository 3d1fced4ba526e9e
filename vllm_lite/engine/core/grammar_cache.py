"""Compiled grammars by constraint, each compiled once, and what came of compiling it."""

from __future__ import annotations

from collections import OrderedDict
from concurrent.futures import Future
from typing import Protocol, TypeVar

from vllm_lite.errors import RequestError
from vllm_lite.log import init_logger
from vllm_lite.structured_output.canonical import name_of
from vllm_lite.structured_output.grammar import CompiledGrammar, Refusal
from vllm_lite.structured_outputs_params import StructuredOutputsParams

logger = init_logger(__name__)

MAX_GRAMMARS = 1024
MAX_BYTES = 256 << 20
MAX_COMPILING = 256
# Bytes of an entry without its grammar, and of a refusal.
_ENTRY_BYTES = 1024
Result = CompiledGrammar | Refusal
Found = TypeVar("Found")


class Compiler(Protocol):
    """Turns a constraint into a grammar."""

    def submit(self, params: StructuredOutputsParams) -> Future[Result]: ...


class GrammarCache:
    """Every constraint is compiled once, however many ask for it at a time."""

    def __init__(self, compiler: Compiler) -> None:
        self._compiler = compiler
        self._done: OrderedDict[bytes, Future[Result]] = OrderedDict()
        self._compiling: dict[bytes, Future[Result]] = {}
        self._num_bytes = 0

    def get(self, params: StructuredOutputsParams) -> Future[Result]:
        """The grammar of a canonical constraint, or its refusal; perhaps still to come."""
        self._gather()
        name = name_of(params)
        found = self._done.get(name)
        if found is not None:
            self._done.move_to_end(name)
            return found
        found = self._compiling.get(name)
        if found is None:
            if len(self._compiling) >= MAX_COMPILING:
                return _settled(
                    Refusal("too many constraints are being compiled", "structured_outputs", 429)
                )
            found = self._compiling[name] = self._compiler.submit(params)
        return found

    def _gather(self) -> None:
        """Move what is done to where it is kept, and forget the oldest beyond the bounds."""
        for name in [name for name, future in self._compiling.items() if future.done()]:
            future = self._compiling.pop(name)
            # What failed by no fault of its own is tried again.
            if _is_final(future):
                self._done[name] = future
                self._num_bytes += _num_bytes(future)
        while len(self._done) > MAX_GRAMMARS or self._num_bytes > MAX_BYTES:
            _, oldest = self._done.popitem(last=False)
            self._num_bytes -= _num_bytes(oldest)


def outcome(future: Future[Found]) -> Found | Refusal:
    """The result of a future that is done; a fault of ours becomes a refusal."""
    if future.cancelled():
        return Refusal("the engine is shutting down", "structured_outputs", 503)
    error = future.exception()
    if error is not None:
        logger.error("A constraint could not be compiled", exc_info=error)
        return Refusal("the constraint could not be compiled just now", "structured_outputs", 503)
    return future.result()


def _is_final(future: Future[Result]) -> bool:
    if future.cancelled() or future.exception() is not None:
        return False
    result = future.result()
    return not (isinstance(result, Refusal) and result.status != RequestError.status)


def _settled(refusal: Refusal) -> Future[Result]:
    future: Future[Result] = Future()
    future.set_result(refusal)
    return future


def _num_bytes(future: Future[Result]) -> int:
    result = future.result()
    return _ENTRY_BYTES + (0 if isinstance(result, Refusal) else result.num_bytes)
