"""The body of POST /v1/completions, checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar

from pydantic import WithJsonSchema

from vllm_lite.errors import RequestError
from vllm_lite.server.body import are_tokens
from vllm_lite.server.errors import UnsupportedError
from vllm_lite.server.openai.sampling_protocol import Count, SamplingFields

MAX_PROMPTS = 1024

_TEXT = {"type": "string", "minLength": 1}
_IDS = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}
_EITHER = {"anyOf": [_TEXT, _IDS]}


def prompts_schema(most: int) -> dict[str, object]:
    """JSON schema of a text, token ids, or a list of up to `most` of either."""
    many = {"type": "array", "items": _EITHER, "minItems": 1, "maxItems": most}
    return {"anyOf": [_TEXT, _IDS, many]}


class CompletionRequest(SamplingFields):
    """POST /v1/completions."""

    LATER: ClassVar[Mapping[str, str]] = {
        "prompt_embeds": "prompts given as embeddings",
        "suffix": "a model that fills in the middle",
    }

    # Read by `prompts`, whose errors are clearer than those of a union.
    prompt: Annotated[object, WithJsonSchema(prompts_schema(MAX_PROMPTS))]
    """A text, token ids, or a list of either; up to 1024."""
    logprobs: Count | None = None
    """The number of candidates to report for each token, beside its own log-probability."""
    best_of: int | None = None
    """The same as n, or nothing."""
    add_special_tokens: bool = True
    """Let the tokenizer add what it puts at a text's beginning."""

    def check(self) -> None:
        """Raise RequestError for what the types alone do not refuse."""
        self.check_together()
        if self.use_beam_search and self.stream:
            raise RequestError("a beam search cannot be streamed here", "stream")
        if self.logprob_token_ids is not None and self.logprobs is None:
            raise RequestError.about("logprob_token_ids", "needs logprobs")
        if self.best_of is not None and self.best_of != (self.n or 1):
            raise UnsupportedError.about("best_of", "can only be equal to n here")

    @property
    def is_prompt_only(self) -> bool:
        """Whether the prompt is to be scored and echoed, and nothing generated."""
        return bool(self.echo) and self.max_tokens == 0

    def prompts(self) -> list[str | list[int]]:
        """The prompts, each text or token ids; raises RequestError that names the one at fault."""
        return prompts_of(self.prompt, "prompt", MAX_PROMPTS)


def prompts_of(given: object, name: str, most: int) -> list[str | list[int]]:
    """The field `name` as a list of texts and token ids, at most `most`; raises RequestError."""
    if isinstance(given, str) or (isinstance(given, list) and _is_ids(given)):
        given = [given]
        paths = [name]
    elif isinstance(given, list):
        if len(given) > most:
            raise RequestError.about(name, f"must have at most {most} entries, got {len(given)}")
        paths = [f"{name}.{index}" for index in range(len(given))]
    else:
        raise RequestError.about(
            name,
            "must be a string, a list of strings, a list of token ids, or a list of such lists",
        )
    if not given:
        raise RequestError.about(name, "must not be empty")
    for path, one in zip(paths, given, strict=True):
        _check_prompt(path, one)
    return given


def _is_ids(given: list[object]) -> bool:
    return bool(given) and are_tokens(given)


def _check_prompt(path: str, prompt: object) -> None:
    if not isinstance(prompt, str) and not (isinstance(prompt, list) and _is_ids(prompt)):
        if prompt == []:
            raise RequestError.about(path, "must not be empty")
        raise RequestError.about(path, "must be a string or a list of token ids")
    if not prompt:
        raise RequestError.about(path, "must not be empty")
    if isinstance(prompt, list) and min(prompt) < 0:
        raise RequestError.about(path, f"holds the negative token id {min(prompt)}")
