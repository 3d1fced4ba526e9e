"""The sampling parameters of one request: vLLM's SamplingParams, validated once.

The input processor checks fields against the vocabulary and the context length. Invariant: every
instance is valid and normalised, and decoding it changes nothing.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from typing import Annotated, Any, NamedTuple

import msgspec

from vllm_lite import envs
from vllm_lite.beam_search_params import BeamSearchParams as BeamSearchParams
from vllm_lite.errors import RequestError
from vllm_lite.log import init_logger
from vllm_lite.repetition import RepetitionDetectionParams as RepetitionDetectionParams
from vllm_lite.structured_outputs_params import StructuredOutputsParams as StructuredOutputsParams

logger = init_logger(__name__)

MAX_INT32 = 2**31 - 1
MAX_STOP_STRINGS = 64
MAX_BAD_WORDS = 1024
MAX_TEXT_LENGTH = 1024  # characters of one stop string or bad word
MAX_STOP_TOKEN_IDS = 4096
MAX_BIASED_TOKENS = 16384
MAX_LOGPROB_TOKEN_IDS = 128
MAX_ALLOWED_TOKENS = 2**19  # above every vocabulary in use
MAX_BIAS = 100.0
# Smaller temperatures are raised to this: they are greedy but for rounding.
MIN_TEMPERATURE = 0.01
_GREEDY_BELOW = 1e-5


class RequestOutputKind(IntEnum):
    """The contents of each RequestOutput: cumulative, deltas, or the final one alone."""

    CUMULATIVE = 0
    DELTA = 1
    FINAL_ONLY = 2


class SamplingType(IntEnum):
    """Kind of sampling: greedy, random, or random with a seed."""

    GREEDY = 0
    RANDOM = 1
    RANDOM_SEED = 2


class SamplingParams(msgspec.Struct, kw_only=True, omit_defaults=True, tag="sample"):
    """See vLLM's SamplingParams; field names, defaults and ranges are the same.

    Raises RequestError, with the field's name in `param`, for a value outside its range.
    """

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
    # Report these tokens at each position, in place of the likeliest ones.
    logprob_token_ids: list[int] | None = None
    detokenize: bool = True
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    truncate_prompt_tokens: int | None = None
    # Which side of a prompt is cut off; None is left, so that its end is kept.
    truncation_side: str | None = None
    # Tokens between two outputs of a choice; the engine's own interval is the least.
    stream_interval: int | None = None
    output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE
    logit_bias: dict[int, float] | None = None
    allowed_token_ids: list[int] | None = None
    repetition_detection: RepetitionDetectionParams | None = None
    structured_outputs: StructuredOutputsParams | None = None
    # Most tokens of reasoning before its end is forced; None and -1: no limit.
    thinking_token_budget: int | None = None
    # bad_words as token ids, filled by the input processor, which has the tokenizer.
    bad_words_token_ids: list[list[int]] | None = None

    def __post_init__(self) -> None:
        # vLLM reads True as "one candidate".
        self.logprobs = 1 if self.logprobs is True else self.logprobs
        self.prompt_logprobs = 1 if self.prompt_logprobs is True else self.prompt_logprobs
        self._check_numbers()
        self._check_texts()
        self._check_token_ids()
        self._check_constraint()
        for name in _FLAGS:
            if not isinstance(getattr(self, name), bool):
                raise _refused(name, "must be true or false", getattr(self, name))
        self._normalise()

    @classmethod
    def from_optional(cls, **fields: Any) -> SamplingParams:
        """Build from values that may be None (then the default holds), as a client sends them.

        The keys of `logit_bias` may be decimal strings; its values are clamped to [-100, 100].
        """
        given = {
            name: value
            for name, value in fields.items()
            if value is not None or name in _NONE_IS_A_VALUE
        }
        if "logit_bias" in given:
            given["logit_bias"] = _clamped_bias(given["logit_bias"])
        return cls(**given)

    @property
    def sampling_type(self) -> SamplingType:
        """Greedy, random, or random from the request's own seed."""
        if self.temperature < _GREEDY_BELOW:
            return SamplingType.GREEDY
        return SamplingType.RANDOM if self.seed is None else SamplingType.RANDOM_SEED

    @property
    def reports_logprobs(self) -> bool:
        """Whether each generated token comes with log-probabilities."""
        return self.logprobs is not None or self.logprob_token_ids is not None

    @property
    def banning_fields(self) -> list[str]:
        """The fields in use that may forbid every token at once."""
        return [name for name in _BANNING if getattr(self, name)]

    def clone(self, **changes: Any) -> SamplingParams:
        """A copy that shares no list or dict with this one, with `changes` applied."""
        return SamplingParams(**copy.deepcopy(msgspec.structs.asdict(self)) | changes)

    def _check_numbers(self) -> None:
        for name, limits in RANGES.items():
            limits.check(name, getattr(self, name))
        if self.n > 1 and self.n > envs.VLLM_MAX_N_SEQUENCES:
            raise _refused("n", f"must be in [1, {envs.VLLM_MAX_N_SEQUENCES}]", self.n)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise _refused(
                "min_tokens", f"must be at most max_tokens={self.max_tokens}", self.min_tokens
            )
        if self.truncate_prompt_tokens == 0:
            raise _refused("truncate_prompt_tokens", "must be -1 or at least 1", 0)
        if self.truncation_side not in (None, "left", "right"):
            raise _refused("truncation_side", 'must be "left" or "right"', self.truncation_side)
        if self.output_kind not in _OUTPUT_KINDS:
            raise _refused("output_kind", "must be a RequestOutputKind", self.output_kind)

    def _check_texts(self) -> None:
        if isinstance(self.stop, str):
            self.stop = [self.stop]
        _check_list("stop", self.stop, MAX_STOP_STRINGS, _is_text, _TEXT_RULE)
        _check_list("bad_words", self.bad_words, MAX_BAD_WORDS, _is_text, _TEXT_RULE)
        if self.stop and not self.detokenize:
            raise RequestError("stop strings need detokenize=True; set it or drop stop", "stop")

    def _check_token_ids(self) -> None:
        rule = "non-negative integers"
        _check_list("stop_token_ids", self.stop_token_ids, MAX_STOP_TOKEN_IDS, _is_token, rule)
        allowed = self.allowed_token_ids
        _check_list("allowed_token_ids", allowed, MAX_ALLOWED_TOKENS, _is_token, rule)
        if allowed is not None and not allowed:
            raise RequestError("allowed_token_ids must not be empty", "allowed_token_ids")
        self._check_reported()
        if self.logit_bias is not None:
            _check_bias(self.logit_bias)

    def _check_reported(self) -> None:
        ids = self.logprob_token_ids
        rule = "non-negative integers"
        _check_list("logprob_token_ids", ids, MAX_LOGPROB_TOKEN_IDS, _is_token, rule)
        if ids is not None and not ids:
            raise RequestError("logprob_token_ids must not be empty", "logprob_token_ids")
        if ids is not None and self.logprobs not in (None, len(ids)):
            raise RequestError(
                f"logprobs must be left out or equal the {len(ids)} logprob_token_ids, got "
                f"{self.logprobs}",
                "logprobs",
            )

    def _check_constraint(self) -> None:
        given = self.structured_outputs
        if given is not None and not isinstance(given, StructuredOutputsParams):
            raise _refused("structured_outputs", "must be a StructuredOutputsParams", given)
        detection: object = self.repetition_detection
        if detection is not None and not isinstance(detection, RepetitionDetectionParams):
            rule = "must be a RepetitionDetectionParams"
            raise _refused("repetition_detection", rule, detection)

    def _normalise(self) -> None:
        self.stop = self.stop or []
        self.stop_token_ids = self.stop_token_ids or []
        self.bad_words = self.bad_words or []
        self.output_kind = RequestOutputKind(self.output_kind)
        if self.seed == -1:
            self.seed = None
        if self.top_k == -1:
            self.top_k = 0
        if self.thinking_token_budget == -1:
            self.thinking_token_budget = None
        if _GREEDY_BELOW <= self.temperature < MIN_TEMPERATURE:
            logger.warning(
                "temperature %g is below %g and may cause numerical errors; using %g",
                self.temperature,
                MIN_TEMPERATURE,
                MIN_TEMPERATURE,
            )
            self.temperature = MIN_TEMPERATURE
        if self.temperature < _GREEDY_BELOW:
            if self.n > 1:
                raise _refused("n", "must be 1 with greedy sampling (temperature 0)", self.n)
            self.temperature = 0.0
            self.top_p, self.top_k, self.min_p = 1.0, 0, 0.0


_Tokens = list[Annotated[int, msgspec.Meta(ge=0, le=MAX_INT32)]]
_BANNING = ("allowed_token_ids", "bad_words", "min_tokens", "structured_outputs")
_FLAGS = (
    "ignore_eos",
    "detokenize",
    "skip_special_tokens",
    "spaces_between_special_tokens",
    "include_stop_str_in_output",
)
# Fields whose None has a meaning: max_tokens=None is "to the context's end".
_NONE_IS_A_VALUE = frozenset({"max_tokens"})
_OUTPUT_KINDS = tuple(RequestOutputKind)
_TEXT_RULE = f"non-empty strings of at most {MAX_TEXT_LENGTH} characters"


def _refused(name: str, rule: str, value: object) -> RequestError:
    shown = repr(value)
    if len(shown) > 80:
        shown = shown[:77] + "..."
    return RequestError(f"{name} {rule}, got {shown}", name)


class Range(NamedTuple):
    """The values that a numeric field may have."""

    low: float
    high: float | None
    is_float: bool = False
    excludes_low: bool = False
    may_be_none: bool = False

    def check(self, name: str, value: object) -> None:
        """Raise RequestError for a value outside the range."""
        low, high = self.low, self.high
        if value is None and self.may_be_none:
            return
        kinds = (int, float) if self.is_float else (int,)
        if not isinstance(value, kinds) or isinstance(value, bool):
            raise _refused(name, f"must be {'a number' if self.is_float else 'an integer'}", value)
        is_below = value <= low if self.excludes_low else value < low
        # isfinite comes last: it overflows on an int beyond float's range.
        is_above = high is not None and value > high
        if is_below or is_above or (self.is_float and not math.isfinite(value)):
            limits = f"at least {low}" if high is None else f"in [{low}, {high}]"
            if self.is_float:
                limits = f"in {'(' if self.excludes_low else '['}{low:g}, {high:g}]"
            raise _refused(name, f"must be {limits}", value)


# The numeric fields of SamplingParams.
RANGES = {
    "n": Range(1, None),
    "presence_penalty": Range(-2.0, 2.0, is_float=True),
    "frequency_penalty": Range(-2.0, 2.0, is_float=True),
    # Beyond, a logit of this request could become infinite.
    "repetition_penalty": Range(1e-6, 1e6, is_float=True),
    "temperature": Range(0.0, 2.0, is_float=True),
    "top_p": Range(0.0, 1.0, is_float=True, excludes_low=True),
    "top_k": Range(-1, MAX_INT32),
    "min_p": Range(0.0, 1.0, is_float=True),
    "seed": Range(-(2**63), 2**63 - 1, may_be_none=True),
    "logprobs": Range(-1, MAX_INT32, may_be_none=True),
    "prompt_logprobs": Range(-1, MAX_INT32, may_be_none=True),
    "stream_interval": Range(1, MAX_INT32, may_be_none=True),
    "max_tokens": Range(1, MAX_INT32, may_be_none=True),
    "min_tokens": Range(0, MAX_INT32),
    "truncate_prompt_tokens": Range(-1, MAX_INT32, may_be_none=True),
    "thinking_token_budget": Range(-1, MAX_INT32, may_be_none=True),
}
_BIAS = Range(-MAX_BIAS, MAX_BIAS, is_float=True)


def _is_text(value: object) -> bool:
    return isinstance(value, str) and 0 < len(value) <= MAX_TEXT_LENGTH


def _is_token(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_INT32


def _check_list(
    name: str,
    values: Sequence[object] | None,
    limit: int,
    is_valid: Callable[[object], bool],
    rule: str,
) -> None:
    if values is None:
        return
    if not isinstance(values, list):
        raise _refused(name, "must be a list", values)
    if len(values) > limit:
        raise _refused(name, f"must have at most {limit} entries", len(values))
    if is_valid is _is_token and _are_tokens(values):
        return
    for value in values:
        if not is_valid(value):
            raise _refused(name, f"must hold only {rule}", value)


def _are_tokens(values: Sequence[object]) -> bool:
    """Whether all are tokens, ten times as fast as checking each one."""
    try:
        msgspec.convert(values, _Tokens)
    except (msgspec.ValidationError, UnicodeEncodeError):
        return False
    return True


def _check_bias(bias: object) -> None:
    if not isinstance(bias, dict):
        raise _refused("logit_bias", "must map token ids to numbers", bias)
    if len(bias) > MAX_BIASED_TOKENS:
        rule = f"must have at most {MAX_BIASED_TOKENS} entries"
        raise _refused("logit_bias", rule, len(bias))
    for token_id, value in bias.items():
        if not _is_token(token_id):
            raise _refused("logit_bias", "keys must be non-negative token ids", token_id)
        _BIAS.check("logit_bias", value)


def _clamped_bias(bias: object) -> object:
    """Token ids from decimal strings, values within +-MAX_BIAS; the rest is left to validation."""
    if not isinstance(bias, Mapping):
        return bias
    clamped: dict[object, object] = {}
    bad: list[str] = []
    for token_id, value in bias.items():
        if isinstance(token_id, str):
            try:
                token_id = int(token_id)
            except ValueError:
                bad.append(token_id)
                continue
        # An int may be beyond float's range; isfinite would overflow on it.
        if isinstance(value, int) or (isinstance(value, float) and math.isfinite(value)):
            value = max(-MAX_BIAS, min(MAX_BIAS, value))
        clamped[token_id] = value
    if bad:
        raise RequestError(f"logit_bias keys must be token ids, got {listed(bad)}", "logit_bias")
    return clamped


def listed(values: Sequence[object], most: int = 32) -> str:
    """`values` for an error's message: at most `most` of them, and how many more there are."""
    shown = ", ".join(f"{value!r:.40}" for value in values[:most])
    return shown if len(values) <= most else f"{shown} and {len(values) - most} more"
