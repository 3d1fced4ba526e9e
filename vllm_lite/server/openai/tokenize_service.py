"""POST /tokenize, /detokenize and GET /tokenizer_info: tokenizer and chat template, without the
engine.
"""

from __future__ import annotations

import asyncio
from typing import Annotated

import msgspec
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from vllm_lite.errors import RequestError
from vllm_lite.server.body import parse, read_json
from vllm_lite.server.context import ServingContext
from vllm_lite.server.openai.chat_protocol import TemplateFields
from vllm_lite.server.openai.prepared_chat import render_prompt
from vllm_lite.server.openai.sampling_protocol import RequestBody

MAX_TOKENS = 1 << 20
# Characters below which a text makes no large answer.
_LONG_TEXT = 1 << 14
_VALUES_A_TURN = 1 << 16


class TokenizeRequest(RequestBody):
    """POST /tokenize with a text."""

    model: str | None = None
    """One of the served names; without it, the model that is served."""
    prompt: str
    """The text."""
    add_special_tokens: bool = True
    """Let the tokenizer add what it puts at a text's beginning."""
    return_token_strs: bool = False
    """Give the tokens as the vocabulary spells them too."""


class TokenizeChatRequest(TemplateFields):
    """POST /tokenize with messages."""

    return_token_strs: bool = False
    """Give the tokens as the vocabulary spells them too."""


class DetokenizeRequest(RequestBody):
    """POST /detokenize."""

    model: str | None = None
    """One of the served names; without it, the model that is served."""
    tokens: Annotated[
        list[Annotated[int, Field(ge=0)]], Field(max_length=MAX_TOKENS, fail_fast=True)
    ]
    """Token ids."""


class TokenizeService:
    def __init__(self, context: ServingContext) -> None:
        self._context = context
        # The tokenizer's description, which does not change, once it was written.
        self._described = b""

    async def tokenize(self, request: Request) -> Response:
        """Tokenize a prompt or a conversation."""
        raw = await read_json(request)
        text = raw.get("prompt")
        if isinstance(text, str) and len(text) < _LONG_TEXT and "messages" not in raw:
            return self._context.large_replies.response(await self._tokenized(raw))
        async with self._context.large_replies.making():
            return self._context.large_replies.response(await self._tokenized(raw))

    async def detokenize(self, request: Request) -> Response:
        """Give the text of tokens."""
        body = parse(DetokenizeRequest, await read_json(request))
        self._context.check_model(body.model)
        limit = self._context.vocab_size
        if body.tokens and (largest := max(body.tokens)) >= limit:
            index = body.tokens.index(largest)
            raise RequestError.about(
                f"tokens.{index}", f"is {largest}, which is not in the vocabulary of {limit}"
            )
        async with self._context.large_replies.making():
            text = await asyncio.to_thread(self._context.tokenizer.decode, body.tokens)
            return self._context.large_replies.json({"prompt": text})

    async def describe(self, request: Request) -> Response:
        """Describe the tokenizer and its chat template."""
        if not self._described:
            described = self._context.tokenizer.describe()
            if self._context.chat_template is not None:
                described["chat_template"] = self._context.chat_template
            self._described = msgspec.json.encode(described)
        return Response(self._described, media_type="application/json")

    async def _tokenized(self, raw: dict[str, object]) -> bytearray:
        if "messages" in raw:
            token_ids, with_strings = await self._tokenize_chat(raw)
        else:
            token_ids, with_strings = await self._tokenize_text(raw)
        strings: list[str] | None = None
        if with_strings:
            spell = self._context.tokenizer.convert_ids_to_tokens
            strings = await asyncio.to_thread(spell, token_ids)
        head = {"count": len(token_ids), "max_model_len": self._context.max_model_len}
        body = bytearray(msgspec.json.encode(head)[:-1])
        for name, values in (("tokens", token_ids), ("token_strs", strings)):
            body += b',"%b":' % name.encode()
            await _append(body, values)
        body += b"}"
        return body

    async def _tokenize_text(self, raw: dict[str, object]) -> tuple[list[int], bool]:
        body = parse(TokenizeRequest, raw, TemplateFields.HARMLESS)
        self._context.check_model(body.model)
        token_ids = await self._context.encode(
            body.prompt, "prompt", special=body.add_special_tokens, cut=True, whole=True
        )
        return token_ids, body.return_token_strs

    async def _tokenize_chat(self, raw: dict[str, object]) -> tuple[list[int], bool]:
        body = parse(TokenizeChatRequest, raw, TemplateFields.HARMLESS)
        self._context.check_model(body.model)
        body.check_template_fields(
            trust_template=self._context.server_config.trust_request_chat_template
        )
        prompt = await render_prompt(self._context, body, body.chat_template_kwargs)
        return prompt["prompt_token_ids"], body.return_token_strs


async def _append(body: bytearray, values: list[int] | list[str] | None) -> None:
    """Write a list, which is empty then: of millions, some are written and freed a turn."""
    if values is None:
        body += b"null"
        return
    values.reverse()
    body += b"["
    while values:
        piece = values[: -_VALUES_A_TURN - 1 : -1]
        del values[-_VALUES_A_TURN:]
        body += msgspec.json.encode(piece)[1:-1] + (b"," if values else b"")
        await asyncio.sleep(0)
    body += b"]"
