"""The prompt of a conversation: by the model's chat template, or by its tokenizer's own code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from vllm_lite.tokenizer.chat_template import render_chat
from vllm_lite.tokenizer.tokenizer import Tokenizer


def encode_chat(
    tokenizer: Tokenizer, messages: Sequence[Mapping[str, Any]], **options: Any
) -> tuple[str, list[int]]:
    """The prompt for `messages` as text and as token ids; `options` are those of render_chat.

    Raises RequestError.
    """
    if tokenizer.chat is not None:
        ids = tokenizer.chat.encode(messages, **options)
        return tokenizer.decode(ids), ids
    text = render_chat(tokenizer, messages, **options)
    # The template writes its own special tokens.
    return text, tokenizer.encode(text, add_special_tokens=False)
