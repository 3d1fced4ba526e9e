"""POST /v1/chat/completions: messages in, one or several assistant messages out."""

from __future__ import annotations

from functools import cached_property

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from vllm_lite.outputs import CompletionOutput, RequestOutput
from vllm_lite.server.body import parse, read_json
from vllm_lite.server.context import ServingContext
from vllm_lite.server.generation import Generation
from vllm_lite.server.openai.beam_search import start_searches
from vllm_lite.server.openai.chat_protocol import (
    CHAT_HARMLESS,
    CHAT_LATER,
    ChatCompletionRequest,
)
from vllm_lite.server.openai.chat_stream import ChatChoiceOptions, ChatStream
from vllm_lite.server.openai.chunks import ChunkWriter, UsageCounter
from vllm_lite.server.openai.logprobs import (
    Shown,
    TokenView,
    chat_logprobs,
    prompt_logprobs,
    token_view,
)
from vllm_lite.server.openai.message_reader import ChoiceReaders, logged, message_of
from vllm_lite.server.openai.prepared_chat import PreparedChat, prepare_chat
from vllm_lite.server.openai.sampling_protocol import includes_usage, refuse_unsupported
from vllm_lite.server.replies import EventStream, written


class ChatService:
    """Chat completions over one engine."""

    def __init__(self, context: ServingContext) -> None:
        self._context = context

    async def create(self, request: Request) -> Response:
        """Create a chat completion, streamed or whole."""
        return await self.answer(await read_json(request), request)

    async def answer(self, raw: dict[str, object], request: Request) -> Response:
        """Create a chat completion from `request`'s body, already read."""
        context = self._context
        refuse_unsupported(raw, CHAT_LATER)
        body = parse(ChatCompletionRequest, raw, CHAT_HARMLESS)
        context.check_model(body.model)
        request_id = context.request_id("chatcmpl-", request, body.request_id)
        body.priority = context.priority(request, body.priority)
        prepared = await prepare_chat(context, body)
        context.log_request(request_id, prepared.prompt["prompt"], prepared.params)
        prompts, params = [prepared.prompt], prepared.params
        if prepared.search is not None:
            searches = [prepared.search]
            generation = start_searches(context, body, request_id, prompts, params, searches)
        else:
            generation = context.generations.start(
                prompts, params, request_id, priority=body.priority, cache_salt=body.cache_salt
            )
        reply = ChatReply(context, body, prepared, request_id)
        if body.stream:
            outputs = logged(context, request_id, generation)
            return EventStream(reply.stream().events(outputs), generation, request_id)
        return await reply.whole(request, generation)


class ChatReply:
    """One chat completion on its way to the client."""

    def __init__(
        self,
        context: ServingContext,
        body: ChatCompletionRequest,
        prepared: PreparedChat,
        request_id: str,
    ) -> None:
        config = context.server_config
        self._context = context
        self._body = body
        self._prepared = prepared
        self._request_id = request_id
        has_reasoning = prepared.has_reasoning
        self._usage = UsageCounter(config.enable_prompt_tokens_details, has_reasoning)
        role = config.response_role
        if not body.add_generation_prompt:
            role = body.messages[-1]["role"]
        # Tokens would show the reasoning that the text leaves out.
        hides_tokens = has_reasoning and not body.include_reasoning
        shown: Shown | None = None
        if body.logprobs and not hides_tokens:
            shown = body.logprob_token_ids or body.top_logprobs or 0
        self._options = ChatChoiceOptions(
            role=role,
            echo=_echo_of(body, role),
            logprobs=shown,
            return_token_ids=bool(body.return_token_ids) and not hides_tokens,
            return_prompt_ids=bool(body.return_token_ids),
            prompt_text=prepared.prompt["prompt"] if body.return_prompt_text else None,
            has_timings=config.enable_per_request_metrics and prepared.num_choices == 1,
        )

    # Made once they are needed: the engine has the request by then.
    @cached_property
    def _readers(self) -> ChoiceReaders:
        return ChoiceReaders(
            self._prepared.num_choices,
            self._prepared.parser,
            self._context.count_tokens,
            include_reasoning=self._body.include_reasoning,
        )

    @cached_property
    def _view(self) -> TokenView:
        return token_view(self._context, as_ids=self._body.return_tokens_as_token_ids)

    def stream(self) -> ChatStream:
        context = self._context
        writer = ChunkWriter(
            context.identity(self._request_id, "chat.completion.chunk"),
            self._usage,
            includes_usage(self._body.stream_options, context.server_config),
            context.fingerprint,
        )
        return ChatStream(
            writer, self._usage, self._view, self._options, self._readers, self._count_calls
        )

    async def whole(self, request: Request, generation: Generation) -> Response:
        """The reply as one JSON object, once every choice is finished."""
        (output,) = await generation.finish(request.receive, generation.last_outputs())
        payload = await self.payload(output)
        body = await written([output], lambda: msgspec.json.encode(payload))
        return self._context.large_replies.response(body)

    async def payload(self, output: RequestOutput) -> dict[str, object]:
        """The reply that the finished `output` makes, with every key."""
        usage, options = self._usage, self._options
        usage.add_prompt(output)
        in_order = sorted(output.outputs, key=lambda one: one.index)
        choices, scored = await written(
            [output],
            lambda: (
                [self._choice(one) for one in in_order],
                prompt_logprobs(self._view, output.prompt_logprobs),
            ),
        )
        self._count_calls()
        usage.num_reasoning_tokens = await self._readers.count_reasoning()
        return {
            **self._context.identity(self._request_id, "chat.completion"),
            "choices": choices,
            "service_tier": None,
            "system_fingerprint": self._context.fingerprint,
            "usage": usage.full(),
            "prompt_logprobs": scored,
            "prompt_token_ids": output.prompt_token_ids if options.return_prompt_ids else None,
            "prompt_text": options.prompt_text,
            "kv_transfer_params": None,
            "ec_transfer_params": None,
            "metrics": usage.timings(output.metrics) if options.has_timings else None,
        }

    def _count_calls(self) -> None:
        outcomes = self._readers.outcomes()
        is_streamed = bool(self._body.stream)
        self._context.count_calls("chat_completions", outcomes, is_streamed=is_streamed)

    def _choice(self, choice: CompletionOutput) -> dict[str, object]:
        options, reader = self._options, self._readers[choice.index]
        self._usage.num_completion_tokens += len(choice.token_ids)
        self._context.log_output(self._request_id, choice.text, choice.finish_reason)
        message = message_of(options.role, options.echo, reader.feed(choice))
        logprobs = None
        if options.logprobs is not None and choice.logprobs is not None:
            logprobs = chat_logprobs(
                self._view, choice.token_ids, choice.logprobs, options.logprobs
            )
        return {
            "index": choice.index,
            "message": message,
            "logprobs": logprobs,
            "finish_reason": reader.finish_reason,
            "stop_reason": choice.stop_reason,
            "token_ids": choice.token_ids if options.return_token_ids else None,
            "routed_experts": None,
        }


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
