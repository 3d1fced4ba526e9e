"""The engine core's loop: receive messages, step, send outputs, until Shutdown.

Without work it blocks in a receive. Messages that come during a step are taken before the next,
so an abort frees its blocks within a step.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Generator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from vllm_lite.engine.link.channel import CoreChannel, Heartbeat
from vllm_lite.engine.link.messages import (
    AbortRequests,
    AddRequests,
    Call,
    CallResult,
    Command,
    CoreFailed,
    GetSnapshot,
    GetStats,
    IsPaused,
    Pause,
    Prepare,
    ResetPrefixCache,
    Resume,
    Shutdown,
    ToCore,
    Undecodable,
    WakeUp,
)
from vllm_lite.errors import EngineDeadError, UsageError
from vllm_lite.log import init_logger
from vllm_lite.structured_output.grammar import Refusal

if TYPE_CHECKING:
    from vllm_lite.engine.core.engine_core import EngineCore

logger = init_logger(__name__)

Caller = TypeVar("Caller")
_DONE: Any = object()
MAX_MESSAGE = 2000
# A step may use the estimated processor time times STEP_MARGIN, plus STEP_GRACE seconds.
STEP_MARGIN, STEP_GRACE = 6, 10.0


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


class CoreLoop:
    """Serves one EngineCore to its front ends."""

    def __init__(self, channel: CoreChannel, heartbeat: Heartbeat) -> None:
        self._channel = channel
        self._heartbeat = heartbeat

    def run(self, build: Callable[[], EngineCore]) -> BaseException | None:
        """Build a core and serve it until Shutdown; returns the exception that ended it, if any.

        An exception is also sent to the front ends, as one line.
        """
        core: EngineCore | None = None
        try:
            core = build()
            if core.largest_step:
                self._heartbeat.step_limit = STEP_MARGIN * core.largest_step + STEP_GRACE
            self._channel.send(core.describe())
            # Objects made at start live for ever: spare the collector looking at them again.
            gc.collect()
            gc.freeze()
            self._serve(core)
        except BaseException as error:
            if not isinstance(error, (UsageError, EngineDeadError)):
                logger.exception("The engine core ends")
            self._channel.send(CoreFailed(type(error).__name__, _one_line(error)))
            return error
        finally:
            if core is not None:
                core.shutdown()
        return None

    def _serve(self, core: EngineCore) -> None:
        channel, heartbeat = self._channel, self._heartbeat
        calls = Calls(core, self._answer)
        while True:
            is_idle = not (core.has_work() or calls)
            if is_idle:
                heartbeat.end_step()
            message = channel.receive(block=is_idle, other_fd=core.failure_fd)
            core.check_health()
            heartbeat.begin_step()
            while message is not None:
                if isinstance(message, Shutdown):
                    return
                self._handle(core, calls, message)
                message = channel.receive()
            if core.has_work():
                outputs = core.step()
                if outputs.outputs or outputs.stats:
                    channel.send(outputs)
            elif calls:
                wait(calls.futures, core.grammar_patience, FIRST_COMPLETED)
            calls.advance()

    def _handle(self, core: EngineCore, calls: Calls[Call], message: ToCore | Undecodable) -> None:
        if isinstance(message, AddRequests):
            core.add_requests(message.requests)
        elif isinstance(message, AbortRequests):
            core.abort_requests(message.request_ids)
        elif isinstance(message, Call):
            calls.begin(message, message.command)
        elif isinstance(message, Undecodable):
            self._refuse(core, message)

    def _answer(self, call: Call, value: Any) -> None:
        self._channel.send(CallResult.of(call.call_id, value, call.front_end))

    def _refuse(self, core: EngineCore, message: Undecodable) -> None:
        logger.error("A message to the engine core cannot be read: %s", message.reason)
        reason = "the engine core cannot read the request"
        core.refuse(message.request_ids, reason, message.front_end)
        if message.call_id is not None:
            refusal = Refusal("the engine cannot read the constraint", "structured_outputs")
            self._channel.send(CallResult.of(message.call_id, refusal, message.front_end))


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split()) or "no message"
    return text if len(text) <= MAX_MESSAGE else text[: MAX_MESSAGE - 3] + "..."
