"""A completion as a stream of chunks, for one prompt or several.

Turns the engine's deltas into events; knows no HTTP. Invariant: the texts of a choice, joined,
are the text that the unstreamed reply would have.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Sequence
from dataclasses import dataclass, field

from vllm_lite.outputs import CompletionOutput, PositionLogprobs, RequestOutput
from vllm_lite.server.openai.chunks import ChunkWriter, encode
from vllm_lite.server.openai.logprobs import Shown, TokenView, completion_logprobs
from vllm_lite.server.openai.timings import request_timings
from vllm_lite.server.openai.usage import UsageCounter


@dataclass(frozen=True, slots=True)
class CompletionOptions:
    """The parts of a completion's choices that the request asked for."""

    num_choices: int
    # The candidates that logprobs list; None: no logprobs.
    logprobs: Shown | None
    return_token_ids: bool
    # The prompts' texts, where choices begin with them.
    echoes: Sequence[str] | None
    # Whether what was generated stays hidden: the prompt alone was to be scored.
    is_prompt_only: bool
    # Whether the reply reports its timings.
    has_timings: bool


@dataclass(slots=True)
class _Choice:
    """The state of one choice in a stream."""

    is_open: bool = False
    # Characters of the tokens shown in logprobs.
    offset: int = 0


@dataclass(slots=True)
class Part:
    """The content of a choice's next chunk."""

    text: str
    token_ids: list[int]
    logprobs: list[PositionLogprobs | None] | None = field(default=None)


class CompletionStream:
    """The events of one streamed completion."""

    def __init__(
        self,
        writer: ChunkWriter,
        usage: UsageCounter,
        view: TokenView,
        options: CompletionOptions,
    ) -> None:
        self._writer = writer
        self._usage = usage
        self._view = view
        self._options = options
        self._choices: dict[int, _Choice] = {}
        self._prompts: dict[int, RequestOutput] = {}
        # Of a prompt whose first choice has said nothing: what the others said.
        self._held: dict[int, list[CompletionOutput]] = {}

    async def events(
        self, outputs: AsyncIterable[tuple[int, RequestOutput]]
    ) -> AsyncIterator[bytes]:
        """Events, framed; the deltas of one engine step for several choices come as one."""
        last: RequestOutput | None = None
        async for prompt_index, output in outputs:
            last = output
            choices = self._known(prompt_index, output)
            if choices:
                yield b"".join([self._delta(prompt_index, choice) for choice in choices])
        timings = None
        if self._options.has_timings and last is not None:
            timings = request_timings(last.metrics, self._usage.num_completion_tokens)
        usage = self._writer.usage_chunk(timings)
        if usage:
            yield usage

    def _known(self, prompt_index: int, output: RequestOutput) -> list[CompletionOutput]:
        """The choices to send now: none before the one whose prompt logprobs the echo needs."""
        choices = output.outputs
        if prompt_index not in self._prompts:
            scores = self._options.echoes is not None and self._options.logprobs is not None
            if scores and all(choice.index for choice in choices) and not output.finished:
                self._held.setdefault(prompt_index, []).extend(choices)
                return []
            self._prompts[prompt_index] = output
            self._usage.add_prompt(output)
            choices = [*self._held.pop(prompt_index, ()), *choices]
        return choices

    def _delta(self, prompt_index: int, choice: CompletionOutput) -> bytes:
        options = self._options
        index = prompt_index * options.num_choices + choice.index
        state = self._choices.get(index)
        if state is None:
            state = self._choices[index] = _Choice()
        shown = self._shown(prompt_index, choice, is_first=not state.is_open)
        prompt_ids = b"null"
        if options.return_token_ids and not state.is_open:
            prompt_ids = encode(self._prompts[prompt_index].prompt_token_ids)
        state.is_open = True
        logprobs = b"null"
        if options.logprobs is not None and shown.logprobs:
            value, state.offset = completion_logprobs(
                self._view, shown.token_ids, shown.logprobs, options.logprobs, state.offset
            )
            logprobs = encode(value)
        is_last = choice.finish_reason is not None
        finish_reason, stop_reason = finish_of(choice, self._options)
        return self._writer.chunk(
            b'{"index":%d,"text":%b,"logprobs":%b,"finish_reason":%b,"stop_reason":%b,'
            b'"prompt_token_ids":%b,"token_ids":%b}'
            % (
                index,
                encode(shown.text),
                logprobs,
                encode(finish_reason) if is_last else b"null",
                encode(stop_reason) if is_last else b"null",
                prompt_ids,
                encode(choice.token_ids) if options.return_token_ids else b"null",
            ),
            last=is_last,
        )

    def _shown(self, prompt_index: int, choice: CompletionOutput, *, is_first: bool) -> Part:
        shown = Part("", [], [])
        if not self._options.is_prompt_only:
            self._usage.num_completion_tokens += len(choice.token_ids)
            shown = Part(choice.text, choice.token_ids, list(choice.logprobs or ()))
        if is_first and self._options.echoes is not None:
            first = self._prompts[prompt_index]
            return with_echo(first, self._options.echoes[prompt_index], shown)
        return shown


def with_echo(output: RequestOutput, echo: str, shown: Part) -> Part:
    """`shown` after its prompt, whose text is `echo`."""
    ids = output.prompt_token_ids
    scores = list(output.prompt_logprobs or ())
    # A request that was ended before its prompt was computed has no score for all of it.
    scores += [None] * (len(ids) - len(scores))
    return Part(echo + shown.text, ids + shown.token_ids, scores + (shown.logprobs or []))


def finish_of(
    choice: CompletionOutput, options: CompletionOptions
) -> tuple[str | None, int | str | None]:
    """The finish and stop reason to show; a hidden stop token is not shown."""
    if options.is_prompt_only and choice.finish_reason == "stop":
        return "length", None
    return choice.finish_reason, choice.stop_reason
