"""Where a request's outputs wait for the one task that reads them.

Invariant: at most one output waits, whatever the reader's pace; what comes before it is read
is merged into it, so a slow reader costs the engine neither time nor memory.
"""

from __future__ import annotations

import asyncio

from vllm_lite.outputs import AnyOutput, CompletionOutput, RequestOutput


class OutputCollector:
    """One writer, one reader, both on the event loop."""

    def __init__(self, *, is_delta: bool) -> None:
        self._is_delta = is_delta
        self._output: AnyOutput | None = None
        self._error: BaseException | None = None
        self._waiter: asyncio.Future[None] | None = None

    def put(self, output: AnyOutput) -> None:
        """Take an output; never waits."""
        earlier = self._output if self._is_delta else None
        if isinstance(earlier, RequestOutput) and isinstance(output, RequestOutput):
            merge_delta(earlier, output)
        else:
            self._output = output
        self._wake()

    def fail(self, error: BaseException) -> None:
        """Let the reader raise `error` once it has read what came before."""
        self._error = error
        self._wake()

    async def get(self) -> AnyOutput:
        """The next output; waits for it."""
        while self._output is None:
            if self._error is not None:
                raise self._error
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        output, self._output = self._output, None
        return output

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)


def merge_delta(earlier: RequestOutput, later: RequestOutput) -> None:
    """Make `earlier` what both deltas say together."""
    earlier.finished |= later.finished
    earlier.metrics = later.metrics
    if earlier.prompt_logprobs is None:
        earlier.prompt_logprobs = later.prompt_logprobs
    known = {choice.index: choice for choice in earlier.outputs}
    for choice in later.outputs:
        before = known.get(choice.index)
        if before is None:
            earlier.outputs.append(choice)
        else:
            _merge_choice(before, choice)


def _merge_choice(earlier: CompletionOutput, later: CompletionOutput) -> None:
    earlier.text += later.text
    earlier.token_ids += later.token_ids
    earlier.cumulative_logprob = later.cumulative_logprob
    if later.logprobs:
        earlier.logprobs = (earlier.logprobs or []) + later.logprobs
    earlier.finish_reason = later.finish_reason
    earlier.stop_reason = later.stop_reason
