"""The bodies of POST /tokenize and POST /detokenize, checked."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from vllm_lite.server.openai.chat_protocol import TemplateFields

MAX_TOKENS = 1 << 20


class TokenizeRequest(BaseModel):
    """POST /tokenize with a text."""

    model_config = ConfigDict(hide_input_in_errors=True, use_attribute_docstrings=True)

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


class DetokenizeRequest(BaseModel):
    """POST /detokenize."""

    model_config = ConfigDict(hide_input_in_errors=True, use_attribute_docstrings=True)

    model: str | None = None
    """One of the served names; without it, the model that is served."""
    tokens: Annotated[
        list[Annotated[int, Field(ge=0)]], Field(max_length=MAX_TOKENS, fail_fast=True)
    ]
    """Token ids."""
