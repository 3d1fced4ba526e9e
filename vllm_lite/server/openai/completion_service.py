"""POST /v1/completions: prompts in, continuations out; and POST /invocations."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Sequence
from dataclasses import dataclass, field

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from vllm_lite.engine.client import Prompt
from vllm_lite.errors import RequestError
from vllm_lite.outputs import CompletionOutput, PositionLogprobs, RequestOutput
from vllm_lite.sampling_params import SamplingParams
from vllm_lite.server.body import parse, read_json
from vllm_lite.server.context import ServingContext
from vllm_lite.server.generation import Generation
from vllm_lite.server.openai.beam_search import beam_search_of, start_searches
from vllm_lite.server.openai.chat_service import ChatService
from vllm_lite.server.openai.chunks import ChunkWriter, UsageCounter, encode
from vllm_lite.server.openai.completion_protocol import (
    COMPLETION_HARMLESS,
    COMPLETION_LATER,
    CompletionRequest,
)
from vllm_lite.server.openai.logprobs import (
    Shown,
    TokenView,
    completion_logprobs,
    prompt_logprobs,
    token_view,
)
from vllm_lite.server.openai.message_reader import logged
from vllm_lite.server.openai.sampling_protocol import (
    blamed_on,
    effective_max_tokens,
    from_the_start,
    includes_usage,
    refuse_unsupported,
)
from vllm_lite.server.replies import EventStream, written

DEFAULT_MAX_TOKENS = 16
# Prompts tokenised before others get the event loop.
_PROMPTS_PER_TURN = 16


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
        if ending := self._writer.ending(last, has_timings=self._options.has_timings):
            yield ending

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


class CompletionService:
    """Completions over one engine."""

    def __init__(self, context: ServingContext) -> None:
        self._context = context

    async def create(self, request: Request) -> Response:
        """Create a completion, streamed or whole."""
        return await self.answer(await read_json(request), request)

    async def answer(self, raw: dict[str, object], request: Request) -> Response:
        """Create a completion from `request`'s body, already read."""
        context = self._context
        refuse_unsupported(raw, COMPLETION_LATER)
        body = parse(CompletionRequest, raw, COMPLETION_HARMLESS)
        context.check_model(body.model)
        body.check()
        request_id = context.request_id("cmpl-", request, body.request_id)
        body.priority = context.priority(request, body.priority)
        params = self._sampling_params(body)
        context.generations.check_open()
        prompts, texts = await self._prompts(body)
        with blamed_on("structured_outputs" if body.structured_outputs else "response_format"):
            await context.generations.prepare(params)
        context.log_request(request_id, texts[0], params)
        if body.use_beam_search:
            searches = [beam_search_of(context, body, params) for _ in prompts]
            generation = start_searches(context, body, request_id, prompts, params, searches)
        else:
            generation = context.generations.start(
                prompts, params, request_id, priority=body.priority, cache_salt=body.cache_salt
            )
        reply = _CompletionReply(context, body, params, request_id, texts)
        if body.stream:
            outputs = logged(context, request_id, generation)
            return EventStream(reply.stream().events(outputs), generation, request_id)
        return await reply.whole(request, generation)

    def _sampling_params(self, body: CompletionRequest) -> SamplingParams:
        context = self._context
        scored = body.prompt_logprobs
        if scored is None and body.echo:
            scored = body.logprobs
        # A prompt is scored in the step that samples after it, so one token is generated.
        asked = 1 if body.is_prompt_only else body.max_tokens
        return body.sampling_params(
            context.sampling_defaults,
            max_tokens=effective_max_tokens(
                asked,
                "max_tokens",
                default=DEFAULT_MAX_TOKENS,
                cap=context.max_tokens_cap,
                limit=context.max_model_len,
            ),
            logprobs=body.logprobs,
            prompt_logprobs=scored,
            # Reasoning is not split off here, so the whole text is constrained.
            constraint=from_the_start(body.constraint()),
        )

    async def _prompts(self, body: CompletionRequest) -> tuple[list[Prompt], list[str | None]]:
        """The prompts for the engine and their texts, None where they are token ids."""
        prompts: list[Prompt] = []
        texts: list[str | None] = []
        for index, one in enumerate(body.prompts()):
            if index % _PROMPTS_PER_TURN == 0:
                await asyncio.sleep(0)
            if isinstance(one, list):
                prompts.append(one)
                texts.append(None)
                continue
            token_ids = await self._context.encode(
                one,
                "prompt",
                special=body.add_special_tokens,
                cut=body.truncate_prompt_tokens is not None,
            )
            prompts.append({"prompt": one, "prompt_token_ids": token_ids})
            texts.append(one)
        return prompts, texts


class _CompletionReply:
    """One completion on its way to the client."""

    def __init__(
        self,
        context: ServingContext,
        body: CompletionRequest,
        params: SamplingParams,
        request_id: str,
        texts: list[str | None],
    ) -> None:
        config = context.server_config
        self._context = context
        self._body = body
        self._request_id = request_id
        self._usage = UsageCounter(config.enable_prompt_tokens_details)
        self._view = token_view(context, as_ids=body.return_tokens_as_token_ids)
        num_choices = (body.n or 1) if body.use_beam_search else params.n
        is_single = num_choices == len(texts) == 1
        self._options = CompletionOptions(
            num_choices=num_choices,
            logprobs=body.logprob_token_ids or body.logprobs,
            return_token_ids=bool(body.return_token_ids),
            echoes=self._echoes(texts) if body.echo else None,
            is_prompt_only=body.is_prompt_only,
            has_timings=config.enable_per_request_metrics and is_single,
        )

    def _echoes(self, texts: list[str | None]) -> list[str]:
        given = self._body.prompts()
        return [
            text if text is not None else self._context.tokenizer.decode(_ids(one))
            for one, text in zip(given, texts, strict=True)
        ]

    def stream(self) -> CompletionStream:
        context = self._context
        writer = ChunkWriter(
            context.identity(self._request_id, "text_completion"),
            self._usage,
            includes_usage(self._body.stream_options, context.server_config),
            context.fingerprint,
        )
        return CompletionStream(writer, self._usage, self._view, self._options)

    async def whole(self, request: Request, generation: Generation) -> Response:
        """The reply as one JSON object, once every choice is finished."""
        outputs = await generation.finish(request.receive, generation.last_outputs())
        body = await written(outputs, lambda: msgspec.json.encode(self._payload(outputs)))
        return self._context.large_replies.response(body)

    def _payload(self, outputs: list[RequestOutput]) -> dict[str, object]:
        choices = []
        for index, output in enumerate(outputs):
            self._usage.add_prompt(output)
            for choice in sorted(output.outputs, key=lambda choice: choice.index):
                choices.append(self._choice(index, output, choice))
        metrics = outputs[0].metrics
        return {
            **self._context.identity(self._request_id, "text_completion"),
            "choices": choices,
            "service_tier": None,
            "system_fingerprint": self._context.fingerprint,
            "usage": self._usage.full(),
            "kv_transfer_params": None,
            "ec_transfer_params": None,
            "metrics": self._usage.timings(metrics) if self._options.has_timings else None,
        }

    def _choice(
        self, prompt_index: int, output: RequestOutput, choice: CompletionOutput
    ) -> dict[str, object]:
        options = self._options
        shown = Part("", [], [])
        if not options.is_prompt_only:
            self._usage.num_completion_tokens += len(choice.token_ids)
            shown = Part(choice.text, choice.token_ids, list(choice.logprobs or ()))
        if options.echoes is not None:
            shown = with_echo(output, options.echoes[prompt_index], shown)
        self._context.log_output(self._request_id, choice.text, choice.finish_reason)
        finish_reason, stop_reason = finish_of(choice, options)
        logprobs = None
        if options.logprobs is not None:
            positions = shown.logprobs or []
            logprobs, _ = completion_logprobs(
                self._view, shown.token_ids, positions, options.logprobs, 0
            )
        return {
            "index": prompt_index * options.num_choices + choice.index,
            "text": shown.text,
            "logprobs": logprobs,
            "finish_reason": finish_reason,
            "stop_reason": stop_reason,
            "token_ids": choice.token_ids if options.return_token_ids else None,
            "prompt_logprobs": prompt_logprobs(self._view, output.prompt_logprobs),
            "prompt_token_ids": output.prompt_token_ids if options.return_token_ids else None,
            "routed_experts": None,
        }


def _ids(prompt: str | list[int]) -> list[int]:
    return prompt if isinstance(prompt, list) else []


class InvocationsService:
    """Routes a body to chat or completions by the field that only one of them has."""

    def __init__(self, chat: ChatService, completion: CompletionService) -> None:
        self._chat = chat
        self._completion = completion

    async def create(self, request: Request) -> Response:
        """Create a chat completion from messages, or a completion from a prompt."""
        raw = await read_json(request)
        if "messages" in raw:
            return await self._chat.answer(raw, request)
        if "prompt" in raw:
            return await self._completion.answer(raw, request)
        raise RequestError(
            "The body has neither messages, as a chat request has, nor the prompt of a completion"
        )
