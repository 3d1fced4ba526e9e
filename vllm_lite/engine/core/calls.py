"""Utility calls to the engine core: what each command does, and those that wait for steps."""

from __future__ import annotations

from collections.abc import Callable, Generator
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from vllm_lite.engine.link.messages import (
    Command,
    GetSnapshot,
    GetStats,
    IsPaused,
    Pause,
    Prepare,
    ResetPrefixCache,
    Resume,
    SaveShardedState,
    WakeUp,
)

if TYPE_CHECKING:
    from vllm_lite.engine.core.engine_core import EngineCore

Caller = TypeVar("Caller")
_DONE: Any = object()


def carry_out(core: EngineCore, command: Command[Any]) -> Generator[Future[Any] | None, None, Any]:
    """Carry out a command and return its answer; yields where it has to wait.

    It waits for the future that it yields, or for the core's next step.
    """
    match command:
        case ResetPrefixCache():
            return core.reset_prefix_cache()
        case GetStats():
            return core.make_stats()
        case GetSnapshot():
            return core.snapshot()
        case IsPaused():
            return core.is_paused
        case Resume():
            was_paused = core.is_paused
            core.resume()
            return was_paused
        case Pause():
            core.pause(command.mode)
            yield None  # the ends of requests leave first
            while core.is_paused and not core.is_quiet:
                yield None
            clears = core.is_paused and command.clear_cache and command.mode != "keep"
            if clears and core.reset_prefix_cache() and command.releases:
                core.sleep(command.releases)
            return core.is_paused
        case WakeUp():
            core.wake_up(command.tags)
            return None
        case SaveShardedState():
            return core.save_sharded_state(command.directory, command.pattern, command.max_size)
        case Prepare():
            found = core.constraints.prepare(command.params)
            while not found.done():
                yield found
            return core.constraints.verdict(command.params, found)
    raise TypeError(f"{type(command).__name__} is not a command of the engine core")


class Calls(Generic[Caller]):
    """The calls in progress; `reply` gets each caller's answer."""

    def __init__(self, core: EngineCore, reply: Callable[[Caller, Any], None]) -> None:
        self._core = core
        self._reply = reply
        # Each with the future that it waits for, None where that is a step.
        self._running: dict[Generator[Future[Any] | None, None, None], Future[Any] | None] = {}

    def __bool__(self) -> bool:
        return bool(self._running)

    @property
    def futures(self) -> list[Future[Any]]:
        return [future for future in self._running.values() if future is not None]

    def begin(self, caller: Caller, command: Command[Any]) -> None:
        """Carry out a command as far as is possible now."""
        call = self._run(caller, command)
        if (future := next(call, _DONE)) is not _DONE:
            self._running[call] = future

    def advance(self) -> None:
        """Go on with each call as far as is possible after a step."""
        if self._running:
            self._running = {
                call: future for call in self._running if (future := next(call, _DONE)) is not _DONE
            }

    def _run(
        self, caller: Caller, command: Command[Any]
    ) -> Generator[Future[Any] | None, None, None]:
        answer = yield from carry_out(self._core, command)
        self._reply(caller, answer)
