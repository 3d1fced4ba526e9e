"""The request fields that chat and completions share, and how they become SamplingParams.

Types are checked here, ranges by SamplingParams, which names the field in its errors. A field
that this server cannot honour yet is refused by name, never ignored.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any, ClassVar, Literal, TypeVar

import msgspec
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema
from pydantic_core import PydanticCustomError

from vllm_lite.errors import RequestError
from vllm_lite.log import init_logger
from vllm_lite.sampling_params import (
    RepetitionDetectionParams,
    RequestOutputKind,
    SamplingParams,
    StructuredOutputsParams,
)
from vllm_lite.server.body import parse, warn_unknown
from vllm_lite.server.errors import UnsupportedError

logger = init_logger(__name__)

_OPTIONS = frozenset(StructuredOutputsParams.__struct_fields__)
_FORMATS = ("text", "json_object", "json_schema", "structural_tag")
MAX_STOP_STRINGS = 4
MAX_CACHE_SALT = 128
# Dropped like unknown fields, as by vLLM, but the log says what took their place.
_RETIRED = frozenset(
    {
        "guided_json",
        "guided_regex",
        "guided_choice",
        "guided_grammar",
        "guided_decoding_backend",
        "guided_whitespace_pattern",
    }
)
# Field -> what it would need. Refused unless its value says "off".
_LATER = {
    "watermarking": "watermarking",
    "mm_processor_kwargs": "media input",
    "media_io_kwargs": "media input",
    "kv_transfer_params": "a KV connector",
    "ec_transfer_params": "an encoder connector",
    "vllm_xargs": "engine extensions",
    "routed_experts_prompt_start": "reports of routed experts",
}
_OFF: tuple[object, ...] = (None, False, "", [], {})
_told_of: set[str] = set()


@contextmanager
def blamed_on(field: str) -> Iterator[None]:
    """Let a refused constraint name `field`, from which it was made."""
    try:
        yield
    except RequestError as error:
        if error.param is None or error.param.split(".")[0] != "structured_outputs":
            raise
        message = error.message.replace(error.param, field)
        raise RequestError(message, field) from None


def constraint_of(
    response_format: dict[str, object] | None, structured_outputs: dict[str, Any] | None
) -> StructuredOutputsParams | None:
    """The constraint on the text; None where it is free. Raises RequestError."""
    wanted = _of_format(response_format)
    if not structured_outputs:
        return wanted
    if wanted is not None:
        raise RequestError.about(
            "response_format", "and structured_outputs cannot both constrain the text; drop one"
        )
    warn_unknown(structured_outputs.keys() - _OPTIONS)
    given = {k: v for k, v in structured_outputs.items() if k in _OPTIONS and v is not None}
    return StructuredOutputsParams(**given)


def from_the_start(constraint: StructuredOutputsParams | None) -> StructuredOutputsParams | None:
    """The same constraint, but of a text's reasoning too."""
    if constraint is None:
        return None
    return msgspec.structs.replace(constraint, enable_in_reasoning=True)


def _of_format(response_format: dict[str, object] | None) -> StructuredOutputsParams | None:
    kind = "text" if response_format is None else response_format.get("type")
    if response_format is None or kind == "text":
        return None
    if kind == "json_object":
        return StructuredOutputsParams(json_object=True)
    if kind == "structural_tag":
        with blamed_on("response_format"):
            return StructuredOutputsParams(structural_tag=json.dumps(response_format))
    if kind != "json_schema":
        raise RequestError.about(
            "response_format.type", f"must be one of {', '.join(_FORMATS)}, got {kind!r:.40}"
        )
    named = response_format.get("json_schema")
    schema = named.get("schema") if isinstance(named, dict) else None
    if not isinstance(schema, dict):
        raise RequestError.about(
            "response_format.json_schema", "must be an object with a name and a schema"
        )
    with blamed_on("response_format.json_schema.schema"):
        return StructuredOutputsParams(json=schema)


def _no_text(value: object) -> object:
    if isinstance(value, str):
        raise PydanticCustomError("int_type", "Input should be a whole number, not text")
    return value


# vLLM takes the text of a number for one, but not here.
Count = Annotated[int, BeforeValidator(_no_text)]
# Only the first wrong entry is reported.
Words = Annotated[list[str], Field(fail_fast=True)]
TokenIds = Annotated[list[int], Field(fail_fast=True)]
# Token ids to numbers; checked with the other parameters.
Bias = Annotated[
    dict[str, object],
    WithJsonSchema({"type": "object", "additionalProperties": {"type": "number"}}),
]


class StreamOptions(BaseModel):
    """Options of a stream."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    include_usage: bool | None = None
    """A last chunk with the usage."""
    continuous_usage_stats: bool | None = None
    """The usage so far in every chunk."""


class RepetitionDetection(BaseModel):
    """Ends a text that repeats a pattern of a length within the two sizes."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    max_pattern_size: int = 0
    """Most tokens of a pattern, up to 512; 0: off."""
    min_pattern_size: int = 0
    """Fewest tokens of a pattern."""
    min_count: int = 0
    """How often a pattern must repeat in a row, twice or more."""


class RequestBody(BaseModel):
    """A body, and what it may hold beside its fields."""

    model_config = ConfigDict(
        allow_inf_nan=False, hide_input_in_errors=True, use_attribute_docstrings=True
    )

    # Accepted from any client and without effect on what is generated.
    HARMLESS: ClassVar[frozenset[str]] = _RETIRED | {
        *("user", "service_tier", "metadata", "store", "session_id", "safety_identifier"),
        *("prompt_cache_key", "early_stopping"),
    }
    # Field -> what it would need. Refused unless its value says "off".
    LATER: ClassVar[Mapping[str, str]] = {}


B = TypeVar("B", bound=RequestBody)


class SamplingChoices(RequestBody):
    """Sampling fields that every API has under the same name; None is the default."""

    temperature: float | None = None
    """From 0, greedy, to 2; 0.01 is the least above 0."""
    top_p: float | None = None
    """Sample from the likeliest tokens that have this share of the probability."""
    top_k: int | None = None
    """Sample from this many of the likeliest tokens; 0 and -1: all."""
    min_p: float | None = None
    """Sample from tokens at least this share as likely as the likeliest."""
    presence_penalty: float | None = None
    """From -2 to 2: subtracted once from the logit of each token generated before."""
    frequency_penalty: float | None = None
    """From -2 to 2: subtracted for each time that a token was generated."""
    repetition_penalty: float | None = None
    """Above 1, tokens of the prompt and the text become less likely."""
    seed: int | None = None
    """Makes the choices repeatable, regardless of other requests; -1: none."""
    stop: str | Words | None = None
    """A text, or up to four, that end a choice before them."""
    stop_token_ids: TokenIds | None = None
    """Tokens that end a choice."""
    logit_bias: Bias | None = None
    """Token id to what is added to its logit, from -100 to 100."""
    allowed_token_ids: TokenIds | None = None
    """The only tokens that may be sampled."""
    bad_words: Words | None = None
    """Words that must not be generated."""
    min_tokens: int | None = None
    """Tokens before which nothing but the length ends a choice."""
    ignore_eos: bool | None = None
    """Go on after the model's end of text."""
    include_stop_str_in_output: bool | None = None
    """Keep what ended a choice in its text."""
    skip_special_tokens: bool | None = None
    """Leave special tokens out of the text; true by default."""
    spaces_between_special_tokens: bool | None = None
    """For tokenizers that put spaces between tokens; true."""
    thinking_token_budget: int | None = None
    """Most tokens of reasoning before its end is forced; -1: no limit."""
    repetition_detection: RepetitionDetection | None = None
    """When repeats end a text, with the finish_reason repetition."""


class SamplingFields(SamplingChoices):
    """Fields with the same name and meaning in chat and completions; None is the default."""

    model: str | None = None
    """One of the served names; without it, the model that is served."""
    n: int | None = None
    """Choices to give; with beam search, its width."""
    max_tokens: int | None = None
    """Most tokens to generate. Chat: the rest of the context; completions: 16."""
    prompt_logprobs: Count | None = None
    """The number of candidates to report for each token of the prompt; -1: all; not streamed."""
    truncate_prompt_tokens: int | None = None
    """Keep so many tokens of the prompt; -1: as many as fit."""
    truncation_side: Literal["left", "right"] | None = None
    """Which side is cut off; left."""
    logprob_token_ids: TokenIds | None = None
    """Up to 128 tokens to report instead of the likeliest ones."""
    use_beam_search: bool | None = None
    """Search for the n likeliest texts instead of sampling."""
    length_penalty: float | None = None
    """A search's: texts compare by log-probability / length ** this; 1."""
    stream: bool | None = None
    """Send events as the text grows."""
    stream_options: StreamOptions | None = None
    """Options of a stream."""
    stream_interval: int | None = None
    """Tokens between two chunks, if more than the server's own interval."""
    echo: bool | None = None
    """Begin the text with the prompt (chat: the last message, where it is continued)."""
    priority: int = 0
    """Smaller runs earlier, under --scheduling-policy priority."""
    cache_salt: Annotated[str, Field(min_length=1, max_length=MAX_CACHE_SALT)] | None = None
    """Share cached prefixes only with requests of the same salt."""
    request_id: str | None = None
    """Becomes part of the reply's id; the header X-Request-Id goes before it."""
    return_token_ids: bool | None = None
    """Give the ids of prompt and text."""
    return_tokens_as_token_ids: bool | None = None
    """Show tokens in logprobs as token_id:N."""
    response_format: dict[str, object] | None = None
    """text, json_object, json_schema or structural_tag."""
    structured_outputs: dict[str, object] | None = None
    """One of json, regex, choice, grammar, json_object and structural_tag."""

    def check_together(self) -> None:
        """Raise RequestError for values that do not go together or have no effect here."""
        if isinstance(self.stop, list) and len(self.stop) > MAX_STOP_STRINGS:
            raise RequestError.about(
                "stop", f"must have at most {MAX_STOP_STRINGS} strings, got {len(self.stop)}"
            )
        if self.stream_options is not None and not self.stream:
            raise RequestError.about("stream_options", "needs stream to be true")
        if self.stream and self.prompt_logprobs not in (None, 0):
            raise RequestError.about("prompt_logprobs", "cannot be streamed")
        if self.cache_salt is not None and set(self.cache_salt) & set("@/\\\0"):
            raise RequestError.about("cache_salt", "must not hold @, /, \\ or NUL")

    def constraint(self) -> StructuredOutputsParams | None:
        """The constraint of response_format or structured_outputs; raises RequestError."""
        if self.response_format is None and not self.structured_outputs:
            return None
        return constraint_of(self.response_format, self.structured_outputs)

    def sampling_params(
        self,
        defaults: dict[str, object],
        *,
        max_tokens: int | None,
        logprobs: int | None,
        prompt_logprobs: int | None,
        constraint: StructuredOutputsParams | None,
    ) -> SamplingParams:
        """The engine's parameters; `defaults` hold where the client is silent."""
        fields = dict(defaults)
        for name in _COPIED:
            value = getattr(self, name)
            if value is not None:
                fields[name] = value
        if self.use_beam_search:
            # Its choices are not sampled: they share one request for each token.
            fields["n"] = 1
        fields["max_tokens"] = max_tokens
        # The chosen tokens replace the likeliest ones.
        fields["logprobs"] = None if self.logprob_token_ids is not None else logprobs
        fields["prompt_logprobs"] = prompt_logprobs
        fields["structured_outputs"] = constraint
        if self.repetition_detection is not None:
            fields["repetition_detection"] = RepetitionDetectionParams(
                **self.repetition_detection.model_dump()
            )
        kind = RequestOutputKind.DELTA if self.stream else RequestOutputKind.FINAL_ONLY
        return SamplingParams.from_optional(**fields, output_kind=kind)


# Copied to SamplingParams where the client set them; the others are read by sampling_params().
_COPIED = [
    name
    for name in SamplingParams.__struct_fields__
    if name in SamplingFields.model_fields
    and name not in ("max_tokens", "prompt_logprobs", "repetition_detection", "structured_outputs")
]


def accepted(model: type[B], body: dict[str, object]) -> B:
    """`body` checked against `model`; raises RequestError.

    Logs fields that vLLM dropped, once each.
    """
    later = model.LATER
    for name in sorted(body.keys() & _RETIRED - _told_of):
        _told_of.add(name)
        logger.warning("the request field %s is ignored: use structured_outputs", name)
    for name in body.keys() & (_LATER.keys() | later.keys()):
        if body[name] not in _OFF:
            needs = later.get(name) or _LATER[name]
            raise UnsupportedError.about(name, f"needs {needs}, which is not supported yet")
    return parse(model, body, model.HARMLESS)


def effective_max_tokens(
    asked: int | None, name: str, *, default: int | None, cap: int | None, limit: int
) -> int | None:
    """Most tokens to generate, never more than `cap`; None is the rest of the context.

    `asked` is the value of the field `name`, and `default` holds without one. Raises RequestError
    where `asked` cannot be met by a context of `limit`.
    """
    if asked is not None and not 1 <= asked <= limit:
        raise RequestError.about(
            name,
            f"must be at least 1 and at most this model's context of {limit} tokens, got {asked}",
        )
    wanted = default if asked is None else asked
    return min((count for count in (wanted, cap) if count is not None), default=None)
