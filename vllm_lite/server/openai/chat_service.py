"""POST /v1/chat/completions: messages in, one or several assistant messages out."""

from __future__ import annotations

import time
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from vllm_lite.outputs import CompletionOutput, RequestOutput
from vllm_lite.sampling_params import SamplingParams
from vllm_lite.server.body import parse, read_json
from vllm_lite.server.context import ServingContext
from vllm_lite.server.disconnect import run_while_connected
from vllm_lite.server.generation import Generation
from vllm_lite.server.openai.chat_prompt import render_prompt
from vllm_lite.server.openai.chat_protocol import (
    CHAT_HARMLESS,
    CHAT_LATER,
    ChatCompletionRequest,
)
from vllm_lite.server.openai.chat_stream import ChatChoiceOptions, ChatStream
from vllm_lite.server.openai.chunks import ChunkWriter
from vllm_lite.server.openai.logprobs import TokenView, chat_logprobs, prompt_logprobs
from vllm_lite.server.openai.sampling_protocol import (
    effective_max_tokens,
    includes_usage,
    refuse_unsupported,
)
from vllm_lite.server.openai.usage import UsageCounter
from vllm_lite.server.sse import EventStream


class ChatService:
    """Chat completions over one engine."""

    def __init__(self, context: ServingContext) -> None:
        self._context = context

    async def create(self, request: Request) -> Response:
        """Create a chat completion, streamed or whole."""
        context = self._context
        raw = await read_json(request)
        refuse_unsupported(raw, CHAT_LATER)
        body = parse(ChatCompletionRequest, raw, CHAT_HARMLESS)
        context.check_model(body.model)
        body.check(
            trust_template=context.server_config.trust_request_chat_template,
            max_logprobs=context.max_logprobs,
        )
        request_id = context.request_id("chatcmpl-", request, body.request_id)
        params = self._sampling_params(body)
        context.generations.check_open()
        prompt = await render_prompt(context, body, body.template_kwargs)
        context.log_request(request_id, prompt["prompt"], params)
        generation = context.generations.start(
            [prompt], params, request_id, priority=body.priority, cache_salt=body.cache_salt
        )
        reply = _ChatReply(context, body, params, request_id, prompt["prompt"])
        if body.stream:
            return EventStream(reply.stream().events(generation), generation, request_id)
        return await reply.whole(request, generation)

    def _sampling_params(self, body: ChatCompletionRequest) -> SamplingParams:
        defaults = self._context.sampling_defaults
        asked, name = body.limit
        scored = body.prompt_logprobs
        if scored is None and body.echo and body.logprobs and not body.stream:
            scored = body.top_logprobs or 0
        return body.sampling_params(
            defaults,
            max_tokens=effective_max_tokens(
                asked, name, defaults, default=None, limit=self._context.max_model_len
            ),
            logprobs=(body.top_logprobs or 0) if body.logprobs else None,
            prompt_logprobs=scored,
        )


class _ChatReply:
    """One chat completion on its way to the client."""

    def __init__(
        self,
        context: ServingContext,
        body: ChatCompletionRequest,
        params: SamplingParams,
        request_id: str,
        prompt_text: str,
    ) -> None:
        config = context.server_config
        self._context = context
        self._body = body
        self._num_choices = params.n
        self._request_id = request_id
        self._usage = UsageCounter(config.enable_prompt_tokens_details)
        as_ids = body.return_tokens_as_token_ids
        if as_ids is None:
            as_ids = config.return_tokens_as_token_ids
        self._view = TokenView(context.maybe_tokenizer, as_ids=as_ids)
        role = config.response_role
        if not body.add_generation_prompt:
            role = body.messages[-1]["role"]
        self._options = ChatChoiceOptions(
            role=role,
            echo=_echo_of(body, role),
            logprobs=bool(body.logprobs),
            top_logprobs=body.top_logprobs or 0,
            return_token_ids=bool(body.return_token_ids),
            prompt_text=prompt_text if body.return_prompt_text else None,
        )

    def stream(self) -> ChatStream:
        """The reply as events."""
        usage = includes_usage(self._body.stream_options, self._context.server_config)
        writer = ChunkWriter(
            self._identity("chat.completion.chunk"),
            self._usage,
            include_usage=usage.at_end,
            continuous_usage=usage.always,
            fingerprint=self._context.fingerprint,
        )
        return ChatStream(writer, self._usage, self._view, self._options, self._num_choices)

    async def whole(self, request: Request, generation: Generation) -> Response:
        """The reply as one JSON object, once every choice is finished."""
        try:
            (output,) = await run_while_connected(request.receive, generation.last_outputs())
        finally:
            await generation.close()
        self._usage.add_prompt(output)
        choices = sorted(output.outputs, key=lambda choice: choice.index)
        payload = {
            **self._identity("chat.completion"),
            "choices": [self._choice(choice) for choice in choices],
            "service_tier": None,
            "system_fingerprint": self._context.fingerprint,
            "usage": self._usage.full(),
            "prompt_logprobs": self._prompt_logprobs(output),
            "prompt_token_ids": output.prompt_token_ids if self._options.return_token_ids else None,
            "prompt_text": self._options.prompt_text,
            "kv_transfer_params": None,
            "ec_transfer_params": None,
            "metrics": None,
        }
        return Response(msgspec.json.encode(payload), media_type="application/json")

    def _identity(self, kind: str) -> dict[str, Any]:
        return {
            "id": self._request_id,
            "object": kind,
            "created": int(time.time()),
            "model": self._context.model_name,
        }

    def _choice(self, choice: CompletionOutput) -> dict[str, Any]:
        options = self._options
        self._usage.num_completion_tokens += len(choice.token_ids)
        self._context.log_output(self._request_id, choice.text, choice.finish_reason)
        logprobs = None
        if options.logprobs and choice.logprobs is not None:
            logprobs = chat_logprobs(
                self._view, choice.token_ids, choice.logprobs, options.top_logprobs
            )
        return {
            "index": choice.index,
            "message": {
                "role": options.role,
                "content": options.echo + choice.text,
                "refusal": None,
                "annotations": None,
                "audio": None,
                "function_call": None,
                "reasoning": None,
            },
            "logprobs": logprobs,
            "finish_reason": choice.finish_reason,
            "stop_reason": choice.stop_reason,
            "token_ids": choice.token_ids if options.return_token_ids else None,
            "routed_experts": None,
        }

    def _prompt_logprobs(self, output: RequestOutput) -> list[dict[str, Any] | None] | None:
        return prompt_logprobs(self._view, output.prompt_logprobs)


def _echo_of(body: ChatCompletionRequest, role: str) -> str:
    """The last message's text, where the reply continues it and it is asked for."""
    last = body.messages[-1]
    if not body.echo or last["role"] != role:
        return ""
    content = last.get("content") or ""
    if isinstance(content, str):
        return content
    texts = [part if isinstance(part, str) else part.get("text", "") for part in content]
    return "\n".join(texts)
