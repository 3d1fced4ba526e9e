"""A chat completion as a stream of chunks.

Turns the engine's deltas into events; knows no HTTP. Invariant: the contents of a choice's
deltas, joined, are the content that the unstreamed reply would have.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator
from dataclasses import dataclass

from vllm_lite.outputs import CompletionOutput, RequestOutput
from vllm_lite.server.openai.chunks import ChunkWriter, encode
from vllm_lite.server.openai.logprobs import TokenView, chat_logprobs
from vllm_lite.server.openai.usage import UsageCounter


@dataclass(frozen=True, slots=True)
class ChatChoiceOptions:
    """What the choices of a chat reply show."""

    role: str
    # Content that the reply begins with: the last message, where it is echoed.
    echo: str
    logprobs: bool
    top_logprobs: int
    return_token_ids: bool
    # The prompt's text, where the reply is to show it.
    prompt_text: str | None


class ChatStream:
    """The events of one streamed chat completion."""

    def __init__(
        self,
        writer: ChunkWriter,
        usage: UsageCounter,
        view: TokenView,
        options: ChatChoiceOptions,
        num_choices: int,
    ) -> None:
        self._writer = writer
        self._usage = usage
        self._view = view
        self._options = options
        self._num_choices = num_choices

    async def events(
        self, outputs: AsyncIterable[tuple[int, RequestOutput]]
    ) -> AsyncIterator[bytes]:
        """Events, framed; the deltas of one engine step for several choices come as one."""
        is_first = True
        async for _, output in outputs:
            if is_first:
                self._usage.add_prompt(output)
                yield self._opening(output)
                is_first = False
            choices = output.outputs
            if len(choices) == 1:
                yield self._delta(choices[0])
            else:
                yield b"".join([self._delta(choice) for choice in choices])
        usage = self._writer.usage_chunk()
        if usage:
            yield usage

    def _opening(self, output: RequestOutput) -> bytes:
        options = self._options
        shown = output.prompt_token_ids if options.return_token_ids else None
        extra = b',"prompt_token_ids":%b,"prompt_text":%b' % (
            encode(shown),
            encode(options.prompt_text),
        )
        role = encode(options.role)
        events = []
        for index in range(self._num_choices):
            choice = (
                b'{"index":%d,"delta":{"role":%b,"content":""},"logprobs":null,'
                b'"finish_reason":null}' % (index, role)
            )
            events.append(self._writer.chunk(choice, extra))
        if options.echo:
            echo = encode(options.echo)
            for index in range(self._num_choices):
                choice = (
                    b'{"index":%d,"delta":{"content":%b},"logprobs":null,"finish_reason":null}'
                    % (index, echo)
                )
                events.append(self._writer.chunk(choice))
        return b"".join(events)

    def _delta(self, choice: CompletionOutput) -> bytes:
        self._usage.num_completion_tokens += len(choice.token_ids)
        logprobs = b"null"
        if self._options.logprobs and choice.logprobs:
            count = self._options.top_logprobs
            logprobs = encode(chat_logprobs(self._view, choice.token_ids, choice.logprobs, count))
        token_ids = encode(choice.token_ids) if self._options.return_token_ids else b"null"
        text = encode(choice.text)
        if choice.finish_reason is None:
            return self._writer.chunk(
                b'{"index":%d,"delta":{"content":%b},"logprobs":%b,"finish_reason":null,'
                b'"token_ids":%b}' % (choice.index, text, logprobs, token_ids)
            )
        return self._writer.chunk(
            b'{"index":%d,"delta":{"content":%b},"logprobs":%b,"finish_reason":%b,'
            b'"stop_reason":%b,"token_ids":%b}'
            % (
                choice.index,
                text,
                logprobs,
                encode(choice.finish_reason),
                encode(choice.stop_reason),
                token_ids,
            ),
            last=True,
        )
