"""The sampling choices of one request: vLLM's SamplingParams, validated once, then immutable.

Knows no model: what needs a vocabulary or a context length is checked by the input processor.
"""

from __future__ import annotations

from enum import IntEnum

import msgspec


class RequestOutputKind(IntEnum):
    """What each RequestOutput of a request carries."""

    CUMULATIVE = 0
    DELTA = 1
    FINAL_ONLY = 2


class SamplingParams(msgspec.Struct, kw_only=True, omit_defaults=True):
    """See vLLM's SamplingParams; field names, defaults and ranges are the same."""

    n: int = 1
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    bad_words: list[str] | None = None
    ignore_eos: bool = False
    max_tokens: int | None = 16
    min_tokens: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    detokenize: bool = True
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    truncate_prompt_tokens: int | None = None
    output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE
    logit_bias: dict[int, float] | None = None
    allowed_token_ids: list[int] | None = None
    # bad_words as token ids, filled by the input processor, which has the tokenizer.
    bad_words_token_ids: list[list[int]] | None = None
