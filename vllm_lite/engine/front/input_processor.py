"""Tokenises prompts, checks requests against the model, and makes the engine core's sequences.

The only check of a prompt's length and ids. Invariant: its token ids are safe to index an
embedding with and leave room for a token where one is to be sampled.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated
from weakref import WeakValueDictionary

import msgspec

from vllm_lite.config.model import MAX_CHARACTERS_PER_TOKEN
from vllm_lite.config.vllm import VllmConfig
from vllm_lite.core.step import Task
from vllm_lite.engine.client import NOBODY, Origin, Prompt
from vllm_lite.engine.link.channel import message_encoder
from vllm_lite.errors import RequestError, UsageError
from vllm_lite.parsers.registry import reasoning_markers
from vllm_lite.pooling_params import PoolingParams
from vllm_lite.sampling_params import SamplingParams, listed
from vllm_lite.structured_output.canonical import canonical
from vllm_lite.structured_outputs_params import StructuredOutputsParams
from vllm_lite.tokenizer.fitting import encode_fitted

if TYPE_CHECKING:
    from vllm_lite.tokenizer.tokenizer import Tokenizer


MAX_CACHE_SALT = 128
MAX_PRIORITY = 2**31
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
    # Of a prompt that is longer than the context and is embedded in parts.
    parts: list[list[int]] = field(default_factory=list)

    @property
    def sequences(self) -> list[list[int]]:
        """The prompt of each sequence of the core: a part, or the whole for each choice."""
        return self.parts or [self.prompt_token_ids] * self.params.n


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


def _check_uncounted(num_uncounted: int, num_tokens: int, longest: int) -> None:
    """Raise RequestError where no token is left, or only a part has the text before."""
    if num_uncounted and not num_uncounted < num_tokens <= longest:
        raise RequestError(
            f"{num_uncounted} tokens before the text are left out of its vector: the prompt must "
            f"have more, and at most {longest}, not {num_tokens}",
            "prompt",
        )


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
        self._pooling = config.facts.pooling
        self._longest_prompt = config.model.max_model_len - (self._pooling is None)
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
        longest = self._longest_prompt
        if isinstance(params, SamplingParams):
            self._check_vocabulary(params)
        elif self._pooling is not None:
            params = params.fitted(self._pooling)
            if params.task == "embed" and self._pooling.enable_chunked_processing:
                longest = self._pooling.max_embed_len or longest
        text, token_ids, own_salt = self._read_prompt(prompt, params, longest)
        salt = own_salt if cache_salt is None else cache_salt
        _check_salt(salt)
        token_ids = self._truncate(token_ids, params)
        self._check_length(token_ids, longest)
        if max(token_ids) >= self._vocab_size:
            # From text: a tokenizer may have more tokens than the model.
            raise RequestError(
                f"the prompt's text holds token {max(token_ids)}, which the model does not have: "
                f"its vocabulary has ids 0 to {self._vocab_size - 1}",
                "prompt",
            )
        if isinstance(params, PoolingParams):
            _check_sendable(params)
            size = self.config.model.max_model_len
            parts = [token_ids[i : i + size] for i in range(0, len(token_ids), size)]
            _check_uncounted(params.num_uncounted_tokens, len(token_ids), size)
            return ProcessedInput(text, token_ids, params, [], salt, parts=parts)
        fitted = self._fit(params, len(token_ids))
        changed = self.process_constraint(fitted)
        self._check_bans(changed)
        return ProcessedInput(text, token_ids, changed, self._eos_token_ids, salt)

    def _check_task(self, params: object) -> None:
        """Raise RequestError for parameters of another task than the engine's."""
        wanted = SamplingParams if self._pooling is None else PoolingParams
        if isinstance(params, wanted):
            return
        if isinstance(params, PoolingParams):
            raise RequestError(
                "this engine generates text; start it with --convert embed or --convert classify "
                "for vectors or classes"
            )
        if isinstance(params, SamplingParams):
            raise RequestError(
                "this engine was started with --runner pooling and generates no text; ask it for "
                f"{' or '.join(self._pooling.tasks) if self._pooling else ''}, or serve a model "
                "that generates"
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
        self, prompt: Prompt, params: Task, longest: int
    ) -> tuple[str | None, list[int], str | None]:
        """(text, token ids, cache salt) of any of the forms a prompt may have."""
        if isinstance(prompt, str):
            return prompt, self._tokenize(prompt, params, longest), None
        if isinstance(prompt, list):
            return None, self._checked_ids(prompt, params, longest), None
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
            return text, self._checked_ids(token_ids, params, longest), salt
        if text is None:
            raise RequestError("the prompt has neither prompt nor prompt_token_ids", "prompt")
        return text, self._tokenize(text, params, longest), salt

    def _tokenize(self, text: str, params: Task, longest: int) -> list[int]:
        if self._tokenizer is None:
            raise RequestError(
                "this engine has no tokenizer (--skip-tokenizer-init): send token ids", "prompt"
            )
        if not text:
            raise RequestError("the prompt is empty", "prompt")
        limit = (longest + 1) * MAX_CHARACTERS_PER_TOKEN
        if len(text) > limit and params.truncate_prompt_tokens is None:
            raise RequestError(
                f"the prompt has {len(text)} characters, more than fit into this model's "
                f"context of {self.config.model.max_model_len} tokens",
                "input_text",
            )
        keep = params.truncate_prompt_tokens
        if keep is None or self._pooling is None or params.truncation_side is not None:
            return self._tokenizer.encode(text)
        most = self._num_kept(keep)
        return encode_fitted(self._tokenizer, text, most, special=True)

    def _checked_ids(self, token_ids: Sequence[object], params: Task, longest: int) -> list[int]:
        if not isinstance(token_ids, list):
            raise RequestError("prompt token ids must be a list of integers", "prompt")
        if params.truncate_prompt_tokens is None:
            # Before the ids are checked one by one.
            self._check_length(token_ids, longest)
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
        keep, side = params.truncate_prompt_tokens, params.truncation_side
        if keep is None:
            return token_ids
        count = self._num_kept(keep)
        is_end_cut = side == "right" or (side is None and self._pooling is not None)
        return token_ids[:count] if is_end_cut else token_ids[-count:]

    def _num_kept(self, keep: int) -> int:
        """The tokens that truncate_prompt_tokens keeps; raises RequestError."""
        longest = self.config.model.max_model_len
        if keep > longest:
            raise RequestError(
                f"truncate_prompt_tokens is {keep}, more than this model's context of "
                f"{longest} tokens",
                "truncate_prompt_tokens",
            )
        return self._longest_prompt if keep == -1 else keep

    def _check_length(self, token_ids: Sequence[object], longest: int) -> None:
        if not token_ids:
            raise RequestError("the prompt is empty", "prompt")
        if len(token_ids) > longest:
            context = self.config.model.max_model_len
            more = "" if self._pooling is not None else " and at least 1 is to be generated"
            of_parts = f", or in parts {longest} (max_embed_len)" if longest > context else ""
            raise RequestError(
                f"This model's maximum context length is {context} tokens{of_parts}, but the "
                f"prompt has {len(token_ids)}{more}; shorten the prompt or set "
                "truncate_prompt_tokens",
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
