"""A chat completion on its way to the client, whole or as a stream of chunks.

Turns the engine's outputs into messages and deltas. Invariant: the deltas of a choice, joined, are
the message that the unstreamed reply would have.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator
from typing import Any

import msgspec
from starlette.responses import Response

from vllm_lite.outputs import CompletionOutput, RequestOutput
from vllm_lite.server.context import ServingContext
from vllm_lite.server.openai.chat_protocol import ChatCompletionRequest
from vllm_lite.server.openai.chunks import Reply, encode
from vllm_lite.server.openai.logprobs import Shown, chat_logprobs, prompt_logprobs
from vllm_lite.server.openai.message_reader import ChoiceReaders, delta_of, message_of
from vllm_lite.server.openai.prepared_chat import PreparedChat
from vllm_lite.server.replies import written


class ChatReply(Reply):
    kind, chunk_kind = "chat.completion", "chat.completion.chunk"

    def __init__(
        self,
        context: ServingContext,
        body: ChatCompletionRequest,
        prepared: PreparedChat,
        request_id: str,
    ) -> None:
        num_choices, has_reasoning = prepared.num_choices, prepared.has_reasoning
        super().__init__(
            context, body, request_id, is_single=num_choices == 1, has_reasoning=has_reasoning
        )
        self._chat = body
        self._prepared = prepared
        self._num_choices = num_choices
        last = body.messages[-1]
        self._role = (
            context.server_config.response_role if body.add_generation_prompt else last["role"]
        )
        # Content that the reply begins with: the last message, where it continues that.
        self._echo = _text_of(last) if body.echo and last["role"] == self._role else ""
        # Tokens would show the reasoning that the text leaves out.
        hides_tokens = has_reasoning and not body.include_reasoning
        # The candidates that logprobs list; None: no logprobs.
        self._shown: Shown | None = None
        if body.logprobs and not hides_tokens:
            self._shown = body.logprob_token_ids or body.top_logprobs or 0
        self._gives_token_ids = bool(body.return_token_ids) and not hides_tokens
        # Most chunks of most streams carry text alone.
        self._is_bare = self._shown is None and not self._gives_token_ids
        self._readers = ChoiceReaders(
            num_choices,
            prepared.parser,
            context.count_tokens,
            include_reasoning=body.include_reasoning,
        )

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
        self._count_calls()
        self._usage.num_reasoning_tokens = await self._readers.count_reasoning()
        if ending := self._ending(last):
            yield ending

    async def whole(self, output: RequestOutput) -> Response:
        """The reply that the finished `output` makes as one JSON object."""
        payload = await self.payload(output)
        body = await written([output], lambda: msgspec.json.encode(payload))
        return self._context.large_replies.response(body)

    async def payload(self, output: RequestOutput) -> dict[str, object]:
        """The reply that the finished `output` makes, with every key."""
        self._usage.add_prompt(output)
        in_order = sorted(output.outputs, key=lambda one: one.index)
        choices, scored = await written(
            [output],
            lambda: (
                [self._choice(one) for one in in_order],
                prompt_logprobs(self._view, output.prompt_logprobs),
            ),
        )
        self._count_calls()
        self._usage.num_reasoning_tokens = await self._readers.count_reasoning()
        return self._frame(
            choices,
            output,
            prompt_logprobs=scored,
            prompt_token_ids=self._prompt_ids(output),
            prompt_text=self._prompt_text,
        )

    def _prompt_ids(self, output: RequestOutput) -> list[int] | None:
        return output.prompt_token_ids if self._chat.return_token_ids else None

    @property
    def _prompt_text(self) -> str | None:
        return self._prepared.prompt["prompt"] if self._chat.return_prompt_text else None

    def _count_calls(self) -> None:
        outcomes = self._readers.outcomes()
        is_streamed = bool(self._chat.stream)
        self._context.count_calls("chat_completions", outcomes, is_streamed=is_streamed)

    def _logprobs(self, choice: CompletionOutput) -> dict[str, object] | None:
        if self._shown is None or choice.logprobs is None:
            return None
        return chat_logprobs(self._view, choice.token_ids, choice.logprobs, self._shown)

    def _choice(self, choice: CompletionOutput) -> dict[str, object]:
        reader = self._readers[choice.index]
        self._usage.num_completion_tokens += len(choice.token_ids)
        self._context.log_output(self._request_id, choice.text, choice.finish_reason)
        message = message_of(self._role, self._echo, reader.feed(choice))
        return {
            "index": choice.index,
            "message": message,
            "logprobs": self._logprobs(choice),
            "finish_reason": reader.finish_reason,
            "stop_reason": choice.stop_reason,
            "token_ids": choice.token_ids if self._gives_token_ids else None,
            "routed_experts": None,
        }

    def _opening(self, output: RequestOutput) -> bytes:
        extra = b',"prompt_token_ids":%b,"prompt_text":%b' % (
            encode(self._prompt_ids(output)),
            encode(self._prompt_text),
        )
        role = encode(self._role)
        events = []
        for index in range(self._num_choices):
            choice = (
                b'{"index":%d,"delta":{"role":%b,"content":""},"logprobs":null,'
                b'"finish_reason":null}' % (index, role)
            )
            events.append(self._framed(choice, extra))
        if self._echo:
            echo = encode({"content": self._echo})
            events += [self._bare(index, echo) for index in range(self._num_choices)]
        return b"".join(events)

    def _bare(self, index: int, delta: bytes) -> bytes:
        """A chunk of a choice without token ids or logprobs."""
        choice = b'{"index":%d,"delta":%b,"logprobs":null,"finish_reason":null}' % (index, delta)
        return self._framed(choice)

    def _plain(self, choice: CompletionOutput) -> bytes:
        if choice.finish_reason is None and self._is_bare:
            self._usage.num_completion_tokens += len(choice.token_ids)
            return self._framed(
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
        if deltas or not self._is_bare or choice.finish_reason is not None:
            chunks.append(self._chunk(choice, last, reader.finish_reason))
        else:
            self._usage.num_completion_tokens += len(choice.token_ids)
        return b"".join(chunks)

    def _chunk(self, choice: CompletionOutput, delta: bytes, finish_reason: str | None) -> bytes:
        self._usage.num_completion_tokens += len(choice.token_ids)
        logprobs = encode(self._logprobs(choice) if choice.logprobs else None)
        token_ids = encode(choice.token_ids) if self._gives_token_ids else b"null"
        if finish_reason is None:
            return self._framed(
                b'{"index":%d,"delta":%b,"logprobs":%b,"finish_reason":null,"token_ids":%b}'
                % (choice.index, delta, logprobs, token_ids)
            )
        reasons = encode(finish_reason), encode(choice.stop_reason)
        return self._framed(
            b'{"index":%d,"delta":%b,"logprobs":%b,"finish_reason":%b,"stop_reason":%b,'
            b'"token_ids":%b}' % (choice.index, delta, logprobs, *reasons, token_ids),
            last=True,
        )


def _text_of(message: dict[str, object]) -> str:
    content: Any = message.get("content") or ""
    if isinstance(content, str):
        return content
    return "\n".join(part if isinstance(part, str) else part.get("text", "") for part in content)
