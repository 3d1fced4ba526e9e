"""The engine core's loop: receive messages, step, send outputs, until Shutdown.

Without work it blocks in a receive. Messages that come during a step are taken before the next,
so an abort frees its blocks within a step.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, wait
from typing import TYPE_CHECKING, Any

from vllm_lite.engine.core.calls import Calls
from vllm_lite.engine.link.channel import CoreChannel, Heartbeat
from vllm_lite.engine.link.messages import (
    AbortRequests,
    AddRequests,
    Call,
    CallResult,
    CoreFailed,
    Shutdown,
    ToCore,
    Undecodable,
)
from vllm_lite.errors import EngineDeadError, UsageError
from vllm_lite.log import init_logger
from vllm_lite.structured_output.grammar import Refusal

if TYPE_CHECKING:
    from vllm_lite.engine.core.engine_core import EngineCore

logger = init_logger(__name__)

MAX_MESSAGE = 2000
# A step may use the estimated processor time times STEP_MARGIN, plus STEP_GRACE seconds.
STEP_MARGIN, STEP_GRACE = 6, 10.0


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
            if channel.has_ended:
                return
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
