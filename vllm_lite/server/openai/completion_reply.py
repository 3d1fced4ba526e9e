"""A completion on its way to the client, whole or as a stream of chunks."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator
from dataclasses import dataclass

import msgspec
from starlette.responses import Response

from vllm_lite.outputs import CompletionOutput, PositionLogprobs, RequestOutput
from vllm_lite.sampling_params import SamplingParams
from vllm_lite.server.context import ServingContext
from vllm_lite.server.openai.chunks import Reply, encode
from vllm_lite.server.openai.completion_protocol import CompletionRequest
from vllm_lite.server.openai.logprobs import completion_logprobs, prompt_logprobs
from vllm_lite.server.replies import written


@dataclass(slots=True)
class _Part:
    """The text, tokens and log-probabilities of a choice, or of its next chunk."""

    text: str
    token_ids: list[int]
    logprobs: list[PositionLogprobs | None]


class CompletionReply(Reply):
    """One completion of one or several prompts."""

    kind = chunk_kind = "text_completion"

    def __init__(
        self,
        context: ServingContext,
        body: CompletionRequest,
        params: SamplingParams,
        request_id: str,
        texts: list[str | None],
    ) -> None:
        self._num_choices = (body.n or 1) if body.use_beam_search else params.n
        super().__init__(context, body, request_id, is_single=self._num_choices == len(texts) == 1)
        # The candidates that logprobs list; None: no logprobs.
        self._shown = body.logprob_token_ids or body.logprobs
        self._gives_token_ids = bool(body.return_token_ids)
        # What was generated stays hidden: the prompt alone was to be scored.
        self._is_prompt_only = body.is_prompt_only
        # The prompts' texts, where choices begin with them.
        self._echoes: list[str] | None = None
        if body.echo:
            self._echoes = [
                text if text is not None else context.tokenizer.decode(list(given))  # type: ignore[arg-type]
                for given, text in zip(body.prompts(), texts, strict=True)
            ]
        # Characters shown of the tokens of each choice that a stream has begun.
        self._offsets: dict[int, int] = {}
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
        if ending := self._ending(last):
            yield ending

    async def whole(self, outputs: list[RequestOutput]) -> Response:
        """The reply that the finished `outputs`, one for each prompt, make as one JSON object."""
        body = await written(outputs, lambda: msgspec.json.encode(self._payload(outputs)))
        return self._context.large_replies.response(body)

    def _known(self, prompt_index: int, output: RequestOutput) -> list[CompletionOutput]:
        """The choices to send now: none before the one whose prompt logprobs the echo needs."""
        choices = output.outputs
        if prompt_index not in self._prompts:
            scores = self._echoes is not None and self._shown is not None
            if scores and all(choice.index for choice in choices) and not output.finished:
                self._held.setdefault(prompt_index, []).extend(choices)
                return []
            self._prompts[prompt_index] = output
            self._usage.add_prompt(output)
            choices = [*self._held.pop(prompt_index, ()), *choices]
        return choices

    def _delta(self, prompt_index: int, choice: CompletionOutput) -> bytes:
        index = prompt_index * self._num_choices + choice.index
        offset = self._offsets.get(index)
        prompt = self._prompts[prompt_index] if offset is None else None
        shown = self._part(prompt_index, choice, prompt)
        prompt_ids = b"null"
        if self._gives_token_ids and prompt is not None:
            prompt_ids = encode(prompt.prompt_token_ids)
        self._offsets[index] = offset or 0
        logprobs = b"null"
        if self._shown is not None and shown.logprobs:
            value, self._offsets[index] = completion_logprobs(
                self._view, shown.token_ids, shown.logprobs, self._shown, offset or 0
            )
            logprobs = encode(value)
        is_last = choice.finish_reason is not None
        finish_reason, stop_reason = self._finish_of(choice)
        return self._framed(
            b'{"index":%d,"text":%b,"logprobs":%b,"finish_reason":%b,"stop_reason":%b,'
            b'"prompt_token_ids":%b,"token_ids":%b}'
            % (
                index,
                encode(shown.text),
                logprobs,
                encode(finish_reason) if is_last else b"null",
                encode(stop_reason) if is_last else b"null",
                prompt_ids,
                encode(choice.token_ids) if self._gives_token_ids else b"null",
            ),
            last=is_last,
        )

    def _part(
        self, prompt_index: int, choice: CompletionOutput, prompt: RequestOutput | None
    ) -> _Part:
        """The part of `choice` to show, after its `prompt` where that is given and echoed."""
        shown = _Part("", [], [])
        if not self._is_prompt_only:
            self._usage.num_completion_tokens += len(choice.token_ids)
            shown = _Part(choice.text, choice.token_ids, list(choice.logprobs or ()))
        if prompt is None or self._echoes is None:
            return shown
        ids = prompt.prompt_token_ids
        scores = list(prompt.prompt_logprobs or ())
        # A request that was ended before its prompt was computed has no score for all of it.
        scores += [None] * (len(ids) - len(scores))
        text = self._echoes[prompt_index] + shown.text
        return _Part(text, ids + shown.token_ids, scores + shown.logprobs)

    def _finish_of(self, choice: CompletionOutput) -> tuple[str | None, int | str | None]:
        """The finish and stop reason to show; a hidden stop token is not shown."""
        if self._is_prompt_only and choice.finish_reason == "stop":
            return "length", None
        return choice.finish_reason, choice.stop_reason

    def _payload(self, outputs: list[RequestOutput]) -> dict[str, object]:
        choices = []
        for index, output in enumerate(outputs):
            self._usage.add_prompt(output)
            for choice in sorted(output.outputs, key=lambda choice: choice.index):
                choices.append(self._choice(index, output, choice))
        return self._frame(choices, outputs[0])

    def _choice(
        self, prompt_index: int, output: RequestOutput, choice: CompletionOutput
    ) -> dict[str, object]:
        shown = self._part(prompt_index, choice, output)
        self._context.log_output(self._request_id, choice.text, choice.finish_reason)
        finish_reason, stop_reason = self._finish_of(choice)
        logprobs = None
        if self._shown is not None:
            logprobs, _ = completion_logprobs(
                self._view, shown.token_ids, shown.logprobs, self._shown, 0
            )
        return {
            "index": prompt_index * self._num_choices + choice.index,
            "text": shown.text,
            "logprobs": logprobs,
            "finish_reason": finish_reason,
            "stop_reason": stop_reason,
            "token_ids": choice.token_ids if self._gives_token_ids else None,
            "prompt_logprobs": prompt_logprobs(self._view, output.prompt_logprobs),
            "prompt_token_ids": output.prompt_token_ids if self._gives_token_ids else None,
            "routed_experts": None,
        }
