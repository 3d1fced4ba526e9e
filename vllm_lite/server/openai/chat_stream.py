"""A chat completion as a stream of chunks.

Turns the engine's deltas into events; knows no HTTP. Invariant: the deltas of a choice, joined,
are the message that the unstreamed reply would have.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Callable
from dataclasses import dataclass

from vllm_lite.outputs import CompletionOutput, RequestOutput
from vllm_lite.server.openai.chunks import ChunkWriter, UsageCounter, encode
from vllm_lite.server.openai.logprobs import Shown, TokenView, chat_logprobs
from vllm_lite.server.openai.message_reader import ChoiceReaders, delta_of


@dataclass(frozen=True, slots=True)
class ChatChoiceOptions:
    """The parts of a chat reply's choices that the request asked for."""

    role: str
    # Content that the reply begins with: the last message, where it is echoed.
    echo: str
    # The candidates that logprobs list; None: no logprobs.
    logprobs: Shown | None
    return_token_ids: bool
    return_prompt_ids: bool
    # The prompt's text, where the reply is to show it.
    prompt_text: str | None
    # Whether the reply reports its timings.
    has_timings: bool


class ChatStream:
    """The events of one streamed chat completion."""

    def __init__(
        self,
        writer: ChunkWriter,
        usage: UsageCounter,
        view: TokenView,
        options: ChatChoiceOptions,
        readers: ChoiceReaders,
        on_end: Callable[[], None],
    ) -> None:
        """Calls `on_end` once every choice has ended."""
        self._writer = writer
        self._usage = usage
        self._view = view
        self._options = options
        self._readers = readers
        self._on_end = on_end
        # Most chunks of most streams carry text alone.
        self._is_bare = options.logprobs is None and not options.return_token_ids

    async def events(
        self, outputs: AsyncIterable[tuple[int, RequestOutput]]
    ) -> AsyncIterator[bytes]:
        """Events, framed; the deltas of one engine step for several choices come as one."""
        last: RequestOutput | None = None
        delta = self._parsed if self._readers.has_parser else self._plain
        async for _, output in outputs:
            if last is None:
                self._usage.add_prompt(output)
                yield self._opening(output)
            last = output
            choices = output.outputs
            if len(choices) == 1:
                events = delta(choices[0])
            else:
                events = b"".join([delta(choice) for choice in choices])
            if events:
                yield events
        self._on_end()
        self._usage.num_reasoning_tokens = await self._readers.count_reasoning()
        if ending := self._writer.ending(last, has_timings=self._options.has_timings):
            yield ending

    def _opening(self, output: RequestOutput) -> bytes:
        options = self._options
        shown = output.prompt_token_ids if options.return_prompt_ids else None
        extra = b',"prompt_token_ids":%b,"prompt_text":%b' % (
            encode(shown),
            encode(options.prompt_text),
        )
        role = encode(options.role)
        events = []
        for index in range(self._readers.num_choices):
            choice = (
                b'{"index":%d,"delta":{"role":%b,"content":""},"logprobs":null,'
                b'"finish_reason":null}' % (index, role)
            )
            events.append(self._writer.chunk(choice, extra))
        if options.echo:
            echo = encode({"content": options.echo})
            events += [self._bare(index, echo) for index in range(self._readers.num_choices)]
        return b"".join(events)

    def _bare(self, index: int, delta: bytes) -> bytes:
        """A chunk of a choice without token ids or logprobs."""
        choice = b'{"index":%d,"delta":%b,"logprobs":null,"finish_reason":null}' % (index, delta)
        return self._writer.chunk(choice)

    def _plain(self, choice: CompletionOutput) -> bytes:
        if choice.finish_reason is None and self._is_bare:
            self._usage.num_completion_tokens += len(choice.token_ids)
            return self._writer.chunk(
                b'{"index":%d,"delta":{"content":%b},"logprobs":null,"finish_reason":null,'
                b'"token_ids":null}' % (choice.index, encode(choice.text))
            )
        delta = b'{"content":%b}' % encode(choice.text)
        return self._chunk(choice, delta, choice.finish_reason)

    def _parsed(self, choice: CompletionOutput) -> bytes:
        """The chunks of a text with reasoning or calls in it; a step may complete nothing."""
        reader = self._readers[choice.index]
        has_reasoning = self._readers.has_reasoning
        deltas = [
            encode(delta)
            for event in reader.feed(choice)
            if (delta := delta_of(event, has_reasoning=has_reasoning)) is not None
        ]
        *earlier, last = deltas or [b"{}"]
        chunks = [self._bare(choice.index, delta) for delta in earlier]
        tells_tokens = self._options.logprobs is not None or self._options.return_token_ids
        if deltas or tells_tokens or choice.finish_reason is not None:
            chunks.append(self._chunk(choice, last, reader.finish_reason))
        else:
            self._usage.num_completion_tokens += len(choice.token_ids)
        return b"".join(chunks)

    def _chunk(self, choice: CompletionOutput, delta: bytes, finish_reason: str | None) -> bytes:
        options = self._options
        self._usage.num_completion_tokens += len(choice.token_ids)
        logprobs = b"null"
        if options.logprobs is not None and choice.logprobs:
            logprobs = encode(
                chat_logprobs(self._view, choice.token_ids, choice.logprobs, options.logprobs)
            )
        token_ids = encode(choice.token_ids) if options.return_token_ids else b"null"
        if finish_reason is None:
            return self._writer.chunk(
                b'{"index":%d,"delta":%b,"logprobs":%b,"finish_reason":null,"token_ids":%b}'
                % (choice.index, delta, logprobs, token_ids)
            )
        return self._writer.chunk(
            b'{"index":%d,"delta":%b,"logprobs":%b,"finish_reason":%b,"stop_reason":%b,'
            b'"token_ids":%b}'
            % (
                choice.index,
                delta,
                logprobs,
                encode(finish_reason),
                encode(choice.stop_reason),
                token_ids,
            ),
            last=True,
        )
