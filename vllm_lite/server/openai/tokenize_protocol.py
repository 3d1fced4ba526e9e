"""The bodies of POST /tokenize and POST /detokenize, checked."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from vllm_lite.server.openai.chat_protocol import TemplateFields

MAX_TOKENS = 1 << 20


class TokenizeRequest(BaseModel):
    """POST /tokenize with a text."""

    model_config = ConfigDict(hide_input_in_errors=True)

    model: str | None = None
    prompt: str
    add_special_tokens: bool = True
    return_token_strs: bool = False


class TokenizeChatRequest(TemplateFields):
    """POST /tokenize with messages."""

    return_token_strs: bool = False


class DetokenizeRequest(BaseModel):
    """POST /detokenize."""

    model_config = ConfigDict(hide_input_in_errors=True)

    model: str | None = None
    tokens: Annotated[list[Annotated[int, Field(ge=0)]], Field(max_length=MAX_TOKENS)]
