"""Tokenises prompts, checks requests against the model, and makes the engine core's sequences.

The only check of a prompt's length and ids. Invariant: its token ids are safe to index an
embedding with and leave room for a token where one is to be sampled.
"""

from __future__ import annotations

import contextlib
import copy
import importlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated
from weakref import WeakValueDictionary

import msgspec

from vllm_lite.config.model import MAX_CHARACTERS_PER_TOKEN
from vllm_lite.config.vllm import VllmConfig
from vllm_lite.core.step import EngineCoreRequest, Task
from vllm_lite.engine.client import NOBODY, Origin, Prompt
from vllm_lite.engine.link.channel import message_encoder
from vllm_lite.errors import RequestError, UsageError
from vllm_lite.parsers.registry import reasoning_markers
from vllm_lite.pooling_params import PoolingParams
from vllm_lite.sampling_params import SamplingParams, listed
from vllm_lite.structured_output.canonical import canonical
from vllm_lite.structured_outputs_params import StructuredOutputsParams

if TYPE_CHECKING:
    from vllm_lite.tokenizer.tokenizer import Tokenizer


MAX_CACHE_SALT = 128
MAX_PRIORITY = 2**31
_SEEDS = 1 << 64
_encoder = message_encoder()
_decoder: msgspec.msgpack.Decoder[Task] = msgspec.msgpack.Decoder(Task)


@dataclass(slots=True)
class ProcessedInput:
    """A request that the engine can run."""

    # Text as it was given; None where token ids were.
    prompt: str | None
    prompt_token_ids: list[int]
    # The caller's own are never changed: these may be a copy.
    params: Task
    eos_token_ids: list[int]
    cache_salt: str | None
    origin: Origin = NOBODY


def check_priority(priority: object) -> None:
    """Raise RequestError for a priority that is not a 32-bit number."""
    if type(priority) is not int or not -MAX_PRIORITY <= priority < MAX_PRIORITY:
        raise RequestError(f"priority must be a whole number within +-{MAX_PRIORITY}", "priority")


def _check_sendable(params: Task) -> None:
    """Raise RequestError for parameters that would not arrive unchanged in the engine core.

    A caller in Python can pass any type, and any text.
    """
    try:
        if _decoder.decode(_encoder.encode(params)) == params:
            return
        reason = "they would arrive as others"
    except (msgspec.ValidationError, TypeError, ValueError, OverflowError) as error:
        reason = f"{error}"[:200]
    raise RequestError(f"the parameters cannot be sent to the engine: {reason}", "sampling_params")


def _check_salt(salt: object) -> None:
    if salt is None or (isinstance(salt, str) and 0 < len(salt) <= MAX_CACHE_SALT):
        with contextlib.suppress(UnicodeEncodeError):
            str(salt).encode()
            return
    raise RequestError(
        f"cache_salt must be a text of 1 to {MAX_CACHE_SALT} characters", "cache_salt"
    )


def _check_defaults(config: VllmConfig) -> None:
    """Raise UsageError for sampling defaults that are not valid."""
    try:
        SamplingParams.from_optional(**config.sampling_defaults)
    except RequestError as error:
        raise UsageError(
            f"the generation config of {config.facts.path} sets a default that cannot be used: "
            f"{error}; mend its generation_config.json, override it with "
            "--override-generation-config, or pass --generation-config vllm"
        ) from None


class InputProcessor:
    """Tokenises prompts and checks requests against the model."""

    def __init__(self, config: VllmConfig, tokenizer: Tokenizer | None) -> None:
        self.config = config
        self._tokenizer = tokenizer
        self._vocab_size = config.facts.vocab_size
        is_sampling = config.model.runner != "pooling"
        if not is_sampling:
            importlib.import_module("torch")  # now, since outputs are tensors
        self._longest_prompt = config.model.max_model_len - is_sampling
        self._ids_type = list[Annotated[int, msgspec.Meta(ge=0, lt=self._vocab_size)]]
        eos = set(config.facts.eos_token_ids)
        if tokenizer is not None and tokenizer.eos_token_id is not None:
            eos.add(tokenizer.eos_token_id)
        self._eos_token_ids = sorted(eos)
        # Canonical constraints by id: they need not be made canonical again.
        self._canonical = WeakValueDictionary[int, StructuredOutputsParams]()
        if config.sampling_defaults:
            _check_defaults(config)

    def process(
        self, prompt: Prompt, params: Task, cache_salt: str | None = None
    ) -> ProcessedInput:
        """Tokenise and check one request; raises RequestError that names the field."""
        self._check_task(params)
        if isinstance(params, SamplingParams):
            self._check_vocabulary(params)
        text, token_ids, own_salt = self._read_prompt(prompt, params)
        salt = own_salt if cache_salt is None else cache_salt
        _check_salt(salt)
        token_ids = self._truncate(token_ids, params)
        self._check_length(token_ids)
        if max(token_ids) >= self._vocab_size:
            # From text: a tokenizer may have more tokens than the model.
            raise RequestError(
                f"the prompt's text holds token {max(token_ids)}, which the model does not have: "
                f"its vocabulary has ids 0 to {self._vocab_size - 1}",
                "prompt",
            )
        if isinstance(params, PoolingParams):
            pooling, facts = copy.copy(params), self.config.facts.pooling
            if pooling.use_activation is None and facts is not None:
                pooling.use_activation = facts.use_activation
            _check_sendable(pooling)
            return ProcessedInput(text, token_ids, pooling, [], salt)
        fitted = self._fit(params, len(token_ids))
        changed = self.process_constraint(fitted)
        self._check_bans(changed)
        return ProcessedInput(text, token_ids, changed, self._eos_token_ids, salt)

    def _check_task(self, params: object) -> None:
        """Raise RequestError for parameters of another task than the engine's."""
        wanted = PoolingParams if self.config.model.runner == "pooling" else SamplingParams
        if isinstance(params, wanted):
            return
        if isinstance(params, PoolingParams):
            raise RequestError(
                "this engine generates text; start it with --runner pooling for vectors"
            )
        if isinstance(params, SamplingParams):
            raise RequestError(
                "this engine was started with --runner pooling and generates no text; ask it for "
                "vectors, with encode() or embed(), or leave the option out"
            )
        raise RequestError(f"parameters of a request cannot be {type(params).__name__}")

    def process_constraint(self, params: SamplingParams) -> SamplingParams:
        """`params` with their constraint in canonical form and bad words as ids; a copy if changed.

        Raises RequestError for faults that show without compiling it.
        """
        if params.thinking_token_budget is not None:
            self._check_thinking_budget()
        given = params.structured_outputs
        if given is None:
            _check_sendable(params)
            return params
        if self._tokenizer is None:
            raise RequestError(
                "structured_outputs need a tokenizer, which --skip-tokenizer-init left out",
                "structured_outputs",
            )
        if not self._eos_token_ids:
            raise RequestError(
                "structured_outputs need a model with an end-of-sequence token: it ends the text",
                "structured_outputs",
            )
        changed = copy.copy(params)
        if self._canonical.get(id(given)) is not given:
            given = canonical(given, self.config.structured_outputs)
            changed.structured_outputs = self._canonical[id(given)] = given
        if params.bad_words and params.bad_words_token_ids is None:
            changed.bad_words_token_ids = self.bad_word_ids(params.bad_words)
        # Once the constraint is fulfilled only the end may follow.
        changed.ignore_eos = False
        _check_sendable(changed)
        return changed

    def _check_thinking_budget(self) -> None:
        parser = self.config.structured_outputs.reasoning_parser
        if not parser or reasoning_markers(parser) is None:
            raise RequestError(
                "thinking_token_budget needs a --reasoning-parser that marks where reasoning ends",
                "thinking_token_budget",
            )

    def _read_prompt(
        self, prompt: Prompt, params: Task
    ) -> tuple[str | None, list[int], str | None]:
        """(text, token ids, cache salt) of any of the forms a prompt may have."""
        if isinstance(prompt, str):
            return prompt, self._tokenize(prompt, params), None
        if isinstance(prompt, list):
            return None, self._checked_ids(prompt, params), None
        if not isinstance(prompt, dict):
            raise RequestError(
                "a prompt is text, a list of token ids, or a dict with prompt or "
                f"prompt_token_ids, not {type(prompt).__name__}",
                "prompt",
            )
        text, salt = prompt.get("prompt"), prompt.get("cache_salt")
        if text is not None and not isinstance(text, str):
            raise RequestError("the value of prompt must be text", "prompt")
        token_ids = prompt.get("prompt_token_ids")
        if token_ids is not None:
            return text, self._checked_ids(token_ids, params), salt
        if text is None:
            raise RequestError("the prompt has neither prompt nor prompt_token_ids", "prompt")
        return text, self._tokenize(text, params), salt

    def _tokenize(self, text: str, params: Task) -> list[int]:
        if self._tokenizer is None:
            raise RequestError(
                "this engine has no tokenizer (--skip-tokenizer-init): send token ids", "prompt"
            )
        if not text:
            raise RequestError("the prompt is empty", "prompt")
        limit = self.config.model.max_model_len * MAX_CHARACTERS_PER_TOKEN
        if len(text) > limit and params.truncate_prompt_tokens is None:
            raise RequestError(
                f"the prompt has {len(text)} characters, more than fit into this model's "
                f"context of {self.config.model.max_model_len} tokens",
                "input_text",
            )
        return self._tokenizer.encode(text)

    def _checked_ids(self, token_ids: Sequence[object], params: Task) -> list[int]:
        if not isinstance(token_ids, list):
            raise RequestError("prompt token ids must be a list of integers", "prompt")
        if params.truncate_prompt_tokens is None:
            # Before the ids are checked one by one.
            self._check_length(token_ids)
        try:
            # A copy: the caller may change its list while the request waits.
            return msgspec.convert(token_ids, self._ids_type)
        except msgspec.ValidationError:
            bad = next(i for i in token_ids if type(i) is not int or not 0 <= i < self._vocab_size)
        except UnicodeEncodeError:
            bad = next(i for i in token_ids if isinstance(i, str))
        raise RequestError(
            f"token id {bad!r:.40} of the prompt is not in the vocabulary, which has ids 0 to "
            f"{self._vocab_size - 1}",
            "prompt",
        )

    def _truncate(self, token_ids: list[int], params: Task) -> list[int]:
        """Keep the part of the prompt that truncate_prompt_tokens and truncation_side ask for."""
        keep, longest = params.truncate_prompt_tokens, self.config.model.max_model_len
        if keep is None:
            return token_ids
        if keep > longest:
            raise RequestError(
                f"truncate_prompt_tokens is {keep}, more than this model's context of "
                f"{longest} tokens",
                "truncate_prompt_tokens",
            )
        count = self._longest_prompt if keep == -1 else keep
        return token_ids[:count] if params.truncation_side == "right" else token_ids[-count:]

    def _check_length(self, token_ids: Sequence[object]) -> None:
        longest = self.config.model.max_model_len
        if not token_ids:
            raise RequestError("the prompt is empty", "prompt")
        if len(token_ids) > self._longest_prompt:
            more = " and at least 1 is to be generated" if self._longest_prompt < longest else ""
            raise RequestError(
                f"This model's maximum context length is {longest} tokens, but the prompt has "
                f"{len(token_ids)}{more}; shorten the prompt or set truncate_prompt_tokens",
                "input_tokens",
            )

    def _fit(self, params: SamplingParams, num_prompt_tokens: int) -> SamplingParams:
        """`params` with max_tokens inside the context and bad words as ids; a copy if changed."""
        room = self.config.model.max_model_len - num_prompt_tokens
        max_tokens = room if params.max_tokens is None else min(params.max_tokens, room)
        has_words = bool(params.bad_words) and params.bad_words_token_ids is None
        if max_tokens == params.max_tokens and not has_words:
            return params
        fitted = copy.copy(params)
        fitted.max_tokens = max_tokens
        fitted.min_tokens = min(fitted.min_tokens, max_tokens)
        if params.bad_words and has_words:
            fitted.bad_words_token_ids = self.bad_word_ids(params.bad_words)
        return fitted

    def bad_word_ids(self, words: list[str]) -> list[list[int]]:
        """Each word as it is tokenised at the start of a text and, where it differs, inside one."""
        if self._tokenizer is None:
            raise RequestError(
                "bad_words need a tokenizer, which --skip-tokenizer-init left out", "bad_words"
            )
        sequences: list[list[int]] = []
        for word in words:
            bare = self._tokenizer.encode(word.lstrip(), add_special_tokens=False)
            inside = self._tokenizer.encode(" " + word.lstrip(), add_special_tokens=False)
            if not bare:
                raise RequestError(f"bad_words: {word!r:.40} has no tokens", "bad_words")
            sequences.append(bare)
            # If the space is a token of its own, its ban would forbid the space, not the word.
            if len(inside) == len(bare) and inside[0] != bare[0]:
                sequences.append(inside)
        return sequences

    def _check_bans(self, params: SamplingParams) -> None:
        """Raise RequestError where nothing may be a request's first token."""
        words = params.bad_words_token_ids or ()
        most = len(words) + len(self._eos_token_ids) + len(params.stop_token_ids or ())
        if params.allowed_token_ids is None and most < self._vocab_size:
            return
        bans = {
            "bad_words": {ids[0] for ids in words if len(ids) == 1},
            "min_tokens": {*self._eos_token_ids, *(params.stop_token_ids or ())},
        }
        if not params.min_tokens:
            del bans["min_tokens"]
        banned = set[int]().union(*bans.values())
        allowed = params.allowed_token_ids
        if allowed is None and len(banned) < self._vocab_size:
            return
        if banned.issuperset(range(self._vocab_size) if allowed is None else allowed):
            fields = ["allowed_token_ids"] * (allowed is not None)
            fields += [name for name, ids in bans.items() if ids]
            raise RequestError(
                f"{' and '.join(fields)} leave no token to generate; loosen one of them", fields[0]
            )

    def _check_vocabulary(self, params: SamplingParams) -> None:
        limit = self.config.model.max_logprobs
        for name in ("logprobs", "prompt_logprobs"):
            asked = getattr(params, name)
            if asked is None or limit == -1:
                continue
            if name == "logprobs" and params.logprob_token_ids is not None:
                continue  # they have a limit of their own
            if asked > limit or (asked == -1 and self._vocab_size > limit):
                shown = "the whole vocabulary" if asked == -1 else asked
                raise RequestError(
                    f"{name} asks for {shown}, more than the {limit} that --max-logprobs allows",
                    name,
                )
        self._check_in_vocab("logit_bias", params.logit_bias)
        self._check_in_vocab("allowed_token_ids", params.allowed_token_ids)
        self._check_in_vocab("stop_token_ids", params.stop_token_ids)
        self._check_in_vocab("logprob_token_ids", params.logprob_token_ids)
        if self._tokenizer is None and params.stop:
            raise RequestError(
                "stop strings need a tokenizer, which --skip-tokenizer-init left out", "stop"
            )

    def _check_in_vocab(self, name: str, token_ids: Collection[int] | None) -> None:
        if not token_ids or (min(token_ids) >= 0 and max(token_ids) < self._vocab_size):
            return
        unknown = [i for i in token_ids if not 0 <= i < self._vocab_size]
        raise RequestError(
            f"{name} holds token ids that are not in the vocabulary of {self._vocab_size}: "
            f"{listed(unknown)}",
            name,
        )


def fan_out(
    request_id: str, request: ProcessedInput, arrival_time: float, priority: int = 0
) -> list[EngineCoreRequest]:
    """A sequence for each of the n choices of a request.

    With n > 1 their ids are `0_ID`, `1_ID`, ... and choice i samples with seed + i, so that
    seeded choices differ from each other and repeat as a whole.
    """
    n, params = request.params.n, request.params
    return [
        EngineCoreRequest(
            request_id=request_id if n == 1 else f"{index}_{request_id}",
            prompt_token_ids=request.prompt_token_ids,
            task=_choice_params(params, index)
            if n > 1 and isinstance(params, SamplingParams)
            else params,
            eos_token_ids=request.eos_token_ids,
            arrival_time=arrival_time,
            priority=priority,
            cache_salt=request.cache_salt,
            tenant=request.origin.tenant,
        )
        for index in range(n)
    ]


def _choice_params(params: SamplingParams, index: int) -> SamplingParams:
    choice = copy.copy(params)
    choice.n = 1
    if params.seed is not None:
        # Wrapped around to a signed 64-bit number.
        choice.seed = (params.seed + index + _SEEDS // 2) % _SEEDS - _SEEDS // 2
        if params.seed < -1 <= params.seed + index:
            # -1 means "no seed" and is skipped.
            choice.seed += 1
    if index > 0:
        # One choice reports on the prompt, so that the others may use the prefix cache.
        choice.prompt_logprobs = None
    return choice
