"""The engine core's life between two sockets: take messages, step, send, until told to stop.

With no work it blocks in a receive and costs nothing. Messages that come during a step wait
in ZMQ's queue and are taken before the next one, so an abort frees its blocks within a step.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import TYPE_CHECKING

from vllm_lite.engine.link.front_ends import CoreChannel
from vllm_lite.engine.link.heartbeat import Heartbeat
from vllm_lite.engine.link.messages import (
    AbortRequests,
    AddRequests,
    CallResult,
    CoreFailed,
    GetSnapshot,
    GetStats,
    IsPaused,
    Pause,
    Prepare,
    Prepared,
    ResetPrefixCache,
    Resume,
    Shutdown,
    SnapshotTaken,
    ToCore,
    Undecodable,
)
from vllm_lite.errors import EngineDeadError, UsageError
from vllm_lite.log import init_logger
from vllm_lite.structured_output.grammar import Refusal
from vllm_lite.structured_output.grammar_cache import Result

if TYPE_CHECKING:
    from vllm_lite.engine.core.engine_core import EngineCore

logger = init_logger(__name__)

MAX_MESSAGE = 2000
# A step may use so many times the processor time that was estimated, and so many seconds more.
STEP_MARGIN, STEP_GRACE = 6, 10.0
# Seconds that an idle core waits for a grammar before it looks for messages again.
GRAMMAR_PATIENCE = 0.005


class CoreLoop:
    """Serves one EngineCore to its front ends."""

    def __init__(self, channel: CoreChannel, heartbeat: Heartbeat) -> None:
        self._channel = channel
        self._heartbeat = heartbeat
        # Pauses that wait for what was begun before them.
        self._pauses: list[Pause] = []
        # Calls whose constraint is being compiled.
        self._prepares: list[tuple[Prepare, Future[Result]]] = []

    def run(self, build: Callable[[], EngineCore]) -> BaseException | None:
        """Build a core, serve it until told to stop; returns what ended it otherwise.

        Whatever goes wrong, from the first import on, is sent to the front end as one line.
        """
        core: EngineCore | None = None
        try:
            core = build()
            if core.largest_step:
                self._heartbeat.step_limit = STEP_MARGIN * core.largest_step + STEP_GRACE
            self._channel.send(core.describe())
            # What start-up made lives for ever: spare the collector looking at it again.
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
        while True:
            is_idle = not (core.has_work() or self._prepares)
            if is_idle:
                heartbeat.end_step()
            message = channel.receive(block=is_idle, other_fd=core.failure_fd)
            core.check_health()
            heartbeat.begin_step()
            while message is not None:
                if isinstance(message, Shutdown):
                    return
                self._handle(core, message)
                message = channel.receive()
            if core.has_work():
                outputs = core.step()
                if outputs.outputs or outputs.stats:
                    channel.send(outputs)
            elif self._prepares:
                futures = [future for _, future in self._prepares]
                wait(futures, GRAMMAR_PATIENCE, FIRST_COMPLETED)
            self._answer_pauses(core)
            self._answer_prepares(core)

    def _handle(self, core: EngineCore, message: ToCore) -> None:
        if isinstance(message, AddRequests):
            core.add_requests(message.requests)
        elif isinstance(message, AbortRequests):
            core.abort_requests(message.request_ids)
        elif isinstance(message, ResetPrefixCache):
            self._channel.send(CallResult(message.call_id, core.reset_prefix_cache()))
        elif isinstance(message, GetStats):
            self._channel.send(CallResult(message.call_id, core.make_stats()))
        elif isinstance(message, GetSnapshot):
            self._channel.send(SnapshotTaken(message.call_id, core.snapshot()))
        elif isinstance(message, Undecodable):
            self._refuse(core, message)
        elif isinstance(message, Prepare):
            found = core.constraints.prepare(message.params)
            self._prepares.append((message, found))
        elif isinstance(message, Pause):
            core.pause(message.mode)
            self._pauses.append(message)
        elif isinstance(message, Resume):
            self._channel.send(CallResult(message.call_id, core.is_paused))
            core.resume()
        elif isinstance(message, IsPaused):
            self._channel.send(CallResult(message.call_id, core.is_paused))

    def _refuse(self, core: EngineCore, message: Undecodable) -> None:
        logger.error("A message to the engine core cannot be read: %s", message.reason)
        core.refuse(message.request_ids, "the engine core cannot read the request")
        if message.call_id is not None:
            refusal = Refusal("the engine cannot read the constraint", "structured_outputs")
            self._channel.send(Prepared(message.call_id, refusal))

    def _answer_pauses(self, core: EngineCore) -> None:
        if not self._pauses or not (core.is_quiet or not core.is_paused):
            return
        pauses, self._pauses = self._pauses, []
        for pause in pauses:
            clears = core.is_paused and pause.clear_cache and pause.mode != "keep"
            if clears and core.reset_prefix_cache() and pause.sleeps:
                core.sleep()
            self._channel.send(CallResult(pause.call_id, core.is_paused))

    def _answer_prepares(self, core: EngineCore) -> None:
        done = [call for call in self._prepares if call[1].done()]
        for call in done:
            self._prepares.remove(call)
            asked, future = call
            refusal = core.constraints.verdict(asked.params, future)
            self._channel.send(Prepared(asked.call_id, refusal))


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split()) or "no message"
    return text if len(text) <= MAX_MESSAGE else text[: MAX_MESSAGE - 3] + "..."
