"""POST /tokenize and /detokenize: the tokenizer and the chat template, without the engine."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from vllm_lite.errors import RequestError
from vllm_lite.server.body import parse, read_json
from vllm_lite.server.context import ServingContext
from vllm_lite.server.openai.chat_prompt import render_prompt
from vllm_lite.server.openai.chat_protocol import CHAT_HARMLESS
from vllm_lite.server.openai.tokenize_protocol import (
    DetokenizeRequest,
    TokenizeChatRequest,
    TokenizeRequest,
)


class TokenizeService:
    """Text, or messages, to tokens and back."""

    def __init__(self, context: ServingContext) -> None:
        self._context = context

    async def tokenize(self, request: Request) -> Response:
        """Tokenize a prompt or a conversation."""
        raw = await read_json(request)
        if "messages" in raw:
            token_ids, with_strings = await self._tokenize_chat(raw)
        else:
            token_ids, with_strings = await self._tokenize_text(raw)
        strings = None
        if with_strings:
            spell = self._context.tokenizer.convert_ids_to_tokens
            strings = await asyncio.to_thread(spell, token_ids)
        return _json(
            {
                "count": len(token_ids),
                "max_model_len": self._context.max_model_len,
                "tokens": token_ids,
                "token_strs": strings,
            }
        )

    async def detokenize(self, request: Request) -> Response:
        """Give the text of tokens."""
        body = parse(DetokenizeRequest, await read_json(request))
        self._context.check_model(body.model)
        limit = self._context.vocab_size
        for index, token_id in enumerate(body.tokens):
            if token_id >= limit:
                raise RequestError(
                    f"tokens.{index} is {token_id}, which is not in the vocabulary of {limit}",
                    f"tokens.{index}",
                )
        text = await asyncio.to_thread(self._context.tokenizer.decode, body.tokens)
        return _json({"prompt": text})

    async def _tokenize_text(self, raw: dict[str, Any]) -> tuple[list[int], bool]:
        body = parse(TokenizeRequest, raw, CHAT_HARMLESS)
        self._context.check_model(body.model)
        token_ids = await self._context.encode(
            body.prompt, "prompt", special=body.add_special_tokens, cut=True
        )
        return token_ids, body.return_token_strs

    async def _tokenize_chat(self, raw: dict[str, Any]) -> tuple[list[int], bool]:
        body = parse(TokenizeChatRequest, raw, CHAT_HARMLESS)
        self._context.check_model(body.model)
        body.check_template_fields(
            trust_template=self._context.server_config.trust_request_chat_template
        )
        prompt = await render_prompt(self._context, body, body.chat_template_kwargs)
        return prompt["prompt_token_ids"], body.return_token_strs


def _json(payload: dict[str, Any]) -> Response:
    return Response(msgspec.json.encode(payload), media_type="application/json")
