"""POST /v1/completions: prompts in, continuations out."""

from __future__ import annotations

import asyncio

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from vllm_lite.engine.client import Prompt
from vllm_lite.outputs import CompletionOutput, RequestOutput
from vllm_lite.sampling_params import SamplingParams
from vllm_lite.server.body import parse, read_json
from vllm_lite.server.context import ServingContext
from vllm_lite.server.generation import Generation
from vllm_lite.server.large_replies import written
from vllm_lite.server.openai.beam_protocol import beam_search_of, start_searches
from vllm_lite.server.openai.chunks import ChunkWriter
from vllm_lite.server.openai.completion_protocol import (
    COMPLETION_HARMLESS,
    COMPLETION_LATER,
    CompletionRequest,
)
from vllm_lite.server.openai.completion_stream import (
    CompletionOptions,
    CompletionStream,
    Part,
    finish_of,
    with_echo,
)
from vllm_lite.server.openai.constraint_protocol import blamed_on, from_the_start
from vllm_lite.server.openai.logprobs import completion_logprobs, prompt_logprobs, token_view
from vllm_lite.server.openai.sampling_protocol import (
    effective_max_tokens,
    includes_usage,
    refuse_unsupported,
)
from vllm_lite.server.openai.timings import request_timings
from vllm_lite.server.openai.usage import UsageCounter
from vllm_lite.server.output_log import logged
from vllm_lite.server.sse import EventStream

DEFAULT_MAX_TOKENS = 16
# Prompts tokenised before others get the event loop.
_PROMPTS_PER_TURN = 16


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
        """The reply as events."""
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
        timings = None
        if self._options.has_timings:
            timings = request_timings(outputs[0].metrics, self._usage.num_completion_tokens)
            timings = {**timings, "speculative_decoding": None}
        return {
            **self._context.identity(self._request_id, "text_completion"),
            "choices": choices,
            "service_tier": None,
            "system_fingerprint": self._context.fingerprint,
            "usage": self._usage.full(),
            "kv_transfer_params": None,
            "ec_transfer_params": None,
            "metrics": timings,
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
