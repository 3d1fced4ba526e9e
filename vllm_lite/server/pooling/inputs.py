"""Inputs of pooling requests become prompts: texts tokenised, conversations rendered, all cut.

Knows no engine. Invariant: what a request asks to cut is cut here, and nothing else is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from vllm_lite.engine.client import PromptDict
from vllm_lite.errors import RequestError
from vllm_lite.server.context import ServingContext
from vllm_lite.server.openai.chat_protocol import check_messages, check_template
from vllm_lite.server.pooling.protocol import InputBody, PoolingBody
from vllm_lite.tokenizer.fitting import cut, encode_fitted

# Texts that are tokenised before others get the event loop.
_TEXTS_A_TURN = 16


def most_tokens(context: ServingContext, body: PoolingBody) -> int | None:
    """The length that the prompts of `body` are cut to; None: they are not. Raises RequestError."""
    keep, longest = body.truncate_prompt_tokens, context.max_model_len
    if keep == 0 or (keep is not None and keep > longest):
        raise RequestError(
            f"truncate_prompt_tokens must be -1 or from 1 to this model's context of {longest} "
            f"tokens, not {keep}",
            "truncate_prompt_tokens",
        )
    return longest if keep == -1 else keep


async def prompts_of(context: ServingContext, body: InputBody) -> list[PromptDict]:
    """The prompts of a body's inputs, one each; raises RequestError that names the one at fault."""
    name, conversations = body.conversations()
    most = most_tokens(context, body)
    if conversations:
        texts = await _rendered(context, body, name, conversations)
        return await text_prompts(context, body, name, texts, special=bool(body.add_special_tokens))
    found: list[PromptDict] = []
    special = body.add_special_tokens is not False
    for index, given in enumerate(body.prompts()):
        if index:
            await asyncio.sleep(0)
        if isinstance(given, list):
            found.append({"prompt_token_ids": cut(given, most, body.truncation_side)})
        else:
            found += await text_prompts(context, body, name, [given], special=special)
    return found


async def text_prompts(
    context: ServingContext, body: PoolingBody, name: str, texts: Sequence[str], *, special: bool
) -> list[PromptDict]:
    """The prompts of texts of the field `name`; raises RequestError."""
    most, side = most_tokens(context, body), body.truncation_side
    found: list[PromptDict] = []
    for index, text in enumerate(texts):
        if index and index % _TEXTS_A_TURN == 0:
            await asyncio.sleep(0)
        ids = await context.encode(text, name, special=special, cut=most is not None, whole=True)
        if most is not None and len(ids) > most:
            if side is not None:
                ids = cut(ids, most, side)
            else:
                ids = await asyncio.to_thread(
                    encode_fitted, context.tokenizer, text, most, special=special
                )
        found.append({"prompt": text, "prompt_token_ids": ids})
    return found


async def _rendered(
    context: ServingContext, body: InputBody, name: str, conversations: list[object]
) -> list[str]:
    """Each conversation as the chat template writes it; raises RequestError."""
    check_template(body.chat_template, is_trusted=context.server_config.trust_request_chat_template)
    is_one = len(conversations) == 1 and getattr(body, name) is conversations[0]
    texts = []
    for index, messages in enumerate(conversations):
        path = name if is_one else f"{name}.{index}"
        texts.append(
            await context.render(
                messages=check_messages(path, messages),
                chat_template=body.chat_template or context.chat_template,
                add_generation_prompt=body.add_generation_prompt,
                continue_final_message=body.continue_final_message,
                chat_template_kwargs={
                    **context.server_config.default_chat_template_kwargs,
                    **(body.chat_template_kwargs or {}),
                },
                content_format=context.server_config.chat_template_content_format,
            )
        )
    return texts
