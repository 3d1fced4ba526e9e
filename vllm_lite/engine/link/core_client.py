"""Clients of an engine core behind a handle: a blocking one, and one for an event loop.

They carry sequences, ids and commands and know no text. A dead or stuck core turns every call
into EngineDeadError with the cause that the core left behind.
"""

from __future__ import annotations

import asyncio
import itertools
import select
import time
from collections import deque
from collections.abc import Iterable
from typing import Any

import msgspec

from vllm_lite import envs
from vllm_lite.config.vllm import VllmConfig
from vllm_lite.core.step import EngineCoreRequest
from vllm_lite.engine.link.core_handle import CoreHandle
from vllm_lite.engine.link.messages import (
    AbortRequests,
    AddRequests,
    Answer,
    AnyCommand,
    Call,
    CallResult,
    Command,
    CoreFailed,
    CoreReady,
    FromCore,
    StepOutputs,
    ToCore,
)
from vllm_lite.errors import EngineDeadError
from vllm_lite.lifeline import ProcessSign, process_sign
from vllm_lite.log import init_logger

logger = init_logger(__name__)

# Seconds that a step may take where neither the core nor a user has set a limit.
LONGEST_STEP = 300
# Seconds between two looks.
INTERVAL = 1.0
# Seconds without a sign of life after which a core is given up.
STALL_LIMIT = 6.0
# Processor seconds within STALL_LIMIT that are no sign of life: a socket's thread needs some.
_NOTHING = 0.03
# Seconds a core may take to end after its last step.
STOP_TIMEOUT = 5.0


class Watch:
    """Watches one core; call `verdict` every INTERVAL."""

    def __init__(self, handle: CoreHandle) -> None:
        self._handle = handle
        self._stamp = 0
        self._looked = time.monotonic()
        # Seconds for which the same step has run, and without a sign of life.
        self._in_step = 0.0
        self._stalled = 0.0
        self._cpu = 0.0
        # Processor seconds of the core when the current step was first seen.
        self._cpu_before = 0.0

    def verdict(self) -> str | None:
        """Why the core counts as stuck; None where it does not. It takes more than one look."""
        now = time.monotonic()
        passed, self._looked = min(now - self._looked, 2 * INTERVAL), now
        stamp = self._handle.heartbeat.stamp
        is_same = stamp != 0 and stamp == self._stamp
        self._stamp = stamp
        self._in_step = self._in_step + passed if is_same else 0.0
        pid = self._handle.watched_pid
        sign = None if pid is None else process_sign(pid)
        return self._check_length(is_same, sign) or self._check_stall(passed, is_same, sign)

    def _check_length(self, is_same: bool, sign: ProcessSign | None) -> str | None:
        if not is_same:
            self._cpu_before = 0.0 if sign is None else sign.cpu
            return None
        limit = envs.VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS
        if self._in_step > (limit or LONGEST_STEP):
            return (
                f"a step has been due or running for {self._in_step:.0f} s, longer than "
                f"VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS={limit or LONGEST_STEP}"
            )
        share = self._handle.heartbeat.step_limit
        used = 0.0 if sign is None else sign.cpu - self._cpu_before
        if limit is None and 0 < share < used:
            return (
                f"a step has used {used:.0f} s of processor time, several times what the largest "
                "should take; VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS sets another limit"
            )
        return None

    def _check_stall(self, passed: float, is_same: bool, sign: ProcessSign | None) -> str | None:
        may_wait = not (is_same and self._handle.computes_itself)
        is_still = sign is not None and (
            sign.state == "T"
            # A thread may wait for a disk.
            or not (may_wait or sign.state == "D" or sign.cpu - self._cpu >= _NOTHING)
        )
        if not is_still:
            self._stalled = 0.0
            self._cpu = 0.0 if sign is None else sign.cpu
            return None
        self._stalled += passed
        if self._stalled <= STALL_LIMIT:
            return None
        state = (
            "has been stopped (SIGSTOP)"
            if sign is not None and sign.state == "T"
            else "has used no processor"
        )
        return f"its process {state} for {self._stalled:.0f} s"


class MPClient:
    """State and sending, which both clients share."""

    def __init__(self, handle: CoreHandle) -> None:
        self.ready = handle.wait_ready()
        self.dead_error: EngineDeadError | None = None
        self._handle = handle
        self._watcher = Watch(handle)
        self._call_ids = itertools.count()
        self._outputs: deque[StepOutputs] = deque()
        self._is_open = True

    def add_requests(self, requests: list[EngineCoreRequest]) -> None:
        self.check_alive()
        for request in requests:
            request.front_end = self._handle.front_end
        self._send(AddRequests(requests))

    def abort_requests(self, request_ids: Iterable[str]) -> None:
        """Drop sequences; unknown ids are ignored, and so is a dead core."""
        if self.dead_error is None:
            self._send(AbortRequests(list(request_ids)))

    def check_alive(self) -> None:
        """Raise EngineDeadError where the core is dead."""
        if self.dead_error is not None:
            raise self.dead_error

    def _send_call(self, command: Command[Any]) -> Call:
        assert isinstance(command, AnyCommand)
        call = Call(next(self._call_ids), command, self._handle.front_end)
        self._send(call)
        return call

    def _send(self, message: ToCore) -> None:
        channel = self._handle.channel
        # A message that cannot be encoded raises here: no step may be expected for it.
        data = channel.encode(message)
        self._handle.heartbeat.expect_step()
        channel.send_encoded(data)


class SyncMPClient(MPClient):
    """A core behind a handle, for one blocking caller."""

    def call(self, command: Command[Answer]) -> Answer:
        """Carry out a command and return its answer."""
        return self.call_all([command])[0]

    def call_all(self, commands: Iterable[Command[Answer]]) -> list[Answer]:
        """Carry out commands side by side and return their answers in order."""
        self.check_alive()
        calls = [self._send_call(command) for command in commands]
        answers: dict[int, Answer] = {}
        commands_due = {call.call_id: call.command for call in calls}
        while commands_due:
            message = self._receive()
            if isinstance(message, StepOutputs):
                self._outputs.append(message)
            elif isinstance(message, CallResult) and message.call_id in commands_due:
                command: Any = commands_due.pop(message.call_id)
                answers[message.call_id] = command.read(message.answer)
        return [answers[call.call_id] for call in calls]

    def get_output(self) -> StepOutputs:
        """The outputs of the next step; waits for it."""
        if self._outputs:
            return self._outputs.popleft()
        while True:
            message = self._receive()
            if isinstance(message, StepOutputs):
                return message

    def shutdown(self) -> None:
        """End the core; calling it again does nothing."""
        if self._is_open:
            self._is_open = False
            self._handle.stop(STOP_TIMEOUT)
            self.dead_error = self.dead_error or EngineDeadError("The engine was shut down")

    def _receive(self) -> FromCore:
        """The next message; raises EngineDeadError where none can come."""
        self.check_alive()
        handle = self._handle
        while True:
            message = handle.channel.receive()
            if message is None and not handle.channel.wait(INTERVAL, other_fd=handle.exit_fd):
                self._check_core()
            if isinstance(message, CoreFailed):
                handle.wait_ended(STOP_TIMEOUT)
                self._die(f"{message.kind}: {message.message}")
            elif message is not None:
                return message

    def _check_core(self) -> None:
        if self._handle.wait_ended(0):
            self._die(self._handle.last_words())
        cause = self._watcher.verdict()
        if cause is not None:
            self._handle.kill()
            self._die(cause)

    def _die(self, cause: str) -> None:
        self.dead_error = EngineDeadError(f"The engine core died: {cause}")
        raise self.dead_error


class AsyncMPClient(MPClient):
    """A core behind a handle, for tasks of one event loop; sending never blocks."""

    def __init__(self, handle: CoreHandle) -> None:
        super().__init__(handle)
        self._exit = select.poll()
        self._exit.register(handle.exit_fd, select.POLLIN)
        self._calls: dict[int, asyncio.Future[msgspec.Raw]] = {}
        self._waiter: asyncio.Future[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._watch: asyncio.TimerHandle | None = None

    def attach(self) -> None:
        """Listen to the core from the running event loop; every other method comes after it."""
        self._loop = loop = asyncio.get_running_loop()
        loop.add_reader(self._handle.channel.fileno(), self._on_messages)
        loop.add_reader(self._handle.exit_fd, self._on_exit)
        self._watch = loop.call_later(INTERVAL, self._on_watch)
        # Nothing announces messages that were read together with an earlier one.
        self._on_messages()

    async def call(self, command: Command[Answer]) -> Answer:
        self.check_alive()
        future: asyncio.Future[msgspec.Raw] = asyncio.get_running_loop().create_future()
        self._calls[self._send_call(command).call_id] = future
        return command.read(await future)

    async def get_outputs(self) -> list[StepOutputs]:
        """Every step's outputs that came since the last call; waits for at least one."""
        while not self._outputs:
            if self.dead_error is not None:
                raise self.dead_error
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        outputs = list(self._outputs)
        self._outputs.clear()
        return outputs

    def is_dead(self) -> bool:
        """Whether the core is gone, noticed by the event loop or not yet."""
        return self.dead_error is not None or (self._is_open and bool(self._exit.poll(0)))

    def check_alive(self) -> None:
        """Raise EngineDeadError where the core is dead; a stuck one dies within two intervals."""
        if self.dead_error is None and self.is_dead():
            self._on_exit()
        super().check_alive()

    def kill(self, cause: str) -> None:
        """End a core that is of no more use."""
        self._handle.kill()
        if self.dead_error is None:
            self._die(cause)

    async def shutdown(self) -> None:
        """End the core; calling it again does nothing."""
        if not self._is_open:
            return
        self._is_open = False
        self._detach()
        self.dead_error = self.dead_error or EngineDeadError("The engine was shut down")
        self._wake_all()
        await asyncio.to_thread(self._handle.stop, STOP_TIMEOUT)

    def _on_messages(self) -> None:
        channel = self._handle.channel
        while (message := channel.receive()) is not None:
            if isinstance(message, StepOutputs):
                self._outputs.append(message)
            elif isinstance(message, CallResult):
                call = self._calls.pop(message.call_id, None)
                if call is not None and not call.done():
                    call.set_result(message.answer)
            elif isinstance(message, CoreFailed):
                self._die(f"{message.kind}: {message.message}")
                return
        if channel.has_ended and self._loop is not None:
            # Until its process ends, too, which tells why.
            self._loop.remove_reader(channel.fileno())
        if self._outputs:
            self._wake()

    def _on_exit(self) -> None:
        self._on_messages()
        if self.dead_error is None:
            self._die(self._handle.last_words())

    def _on_watch(self) -> None:
        cause = self._watcher.verdict()
        if cause is not None:
            self.kill(cause)
        elif self._loop is not None:
            self._watch = self._loop.call_later(INTERVAL, self._on_watch)

    def _die(self, cause: str) -> None:
        self._detach()
        self.dead_error = EngineDeadError(f"The engine core died: {cause}")
        self._wake_all()

    def _detach(self) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.remove_reader(self._handle.channel.fileno())
            self._loop.remove_reader(self._handle.exit_fd)
        if self._watch is not None:
            self._watch.cancel()
        self._loop = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _wake_all(self) -> None:
        self._wake()
        for call in self._calls.values():
            if not call.done() and self.dead_error is not None:
                call.set_exception(self.dead_error)
        self._calls.clear()


def log_ready(config: VllmConfig, ready: CoreReady) -> None:
    """Log what the core reports of its start, and the model's sampling defaults."""
    if config.sampling_defaults:
        logger.info(
            "Default sampling parameters from the model's generation config: %s "
            "(--generation-config vllm turns them off)",
            config.sampling_defaults,
        )
    logger.info("%s; %s", ready.kernels, ready.kv_cache)
    phases = " | ".join(f"{name} {seconds:.2f}" for name, seconds in ready.timeline)
    total = sum(seconds for _, seconds in ready.timeline)
    logger.info("Engine core ready in %.2f s: %s", total, phases)
