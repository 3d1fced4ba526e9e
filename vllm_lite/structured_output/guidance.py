"""Constraints by llguidance: a grammar is text, and sequences build its automata as they go.

Enforces more of JSON Schema than xgrammar does, and says by name what it does not.
"""

from __future__ import annotations

import json
import re
from functools import partial
from typing import TYPE_CHECKING, Any

from vllm_lite.structured_output.grammar import (
    MAX_WHITESPACE,
    GrammarError,
    MatcherError,
    Vocabulary,
)
from vllm_lite.structured_output.tag_lark import TagGrammar
from vllm_lite.structured_outputs_params import StructuredOutputsParams

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vllm_lite.structured_output.grammar import CompiledGrammar, Masks
    from vllm_lite.structured_output.schema import Schema

# Without \u and \/ each key has a single spelling.
_ESCAPES = '"\\bfnrt'
# Any tokenization of the text is allowed: the model knows the usual one.
_ANY_TOKENS = '%llguidance {"no_forcing": true}'
# Parser items at one position: each optional key of an object adds some.
MAX_ITEMS = 10_000
_ONE_OF = (
    "the JSON schema has a oneOf of which two alternatives can hold at once, which cannot be "
    "enforced; write anyOf, or let a required property with another const tell each apart"
)
# llguidance does not report its size: that of a simple grammar.
_GRAMMAR_BYTES = 1 << 20


class Guidance:
    def __init__(self, vocabulary: Vocabulary) -> None:
        import llguidance

        self._llguidance = llguidance
        self._vocabulary = vocabulary
        self._eos_ids = frozenset(vocabulary.eos_ids)
        self._byte_ids = {t: i for i, t in enumerate(vocabulary.tokens) if len(t) == 1}
        self._tokenizers: dict[bool, Any] = {}

    def compile(self, params: StructuredOutputsParams, read: Schema | None) -> bytes:
        """Check a constraint and write it as llguidance's grammar, for `open`.

        `read` is its JSON schema or structural tag. Raises GrammarError in llguidance's words.
        """
        lark_to_grammar = self._llguidance.LLMatcher.grammar_from_lark
        try:
            text = str(lark_to_grammar(f"{self._lark(params, read)}\n{_ANY_TOKENS}\n"))
        except (RuntimeError, ValueError, TypeError, KeyError) as error:
            raise GrammarError(_one_line(str(error))) from None
        matcher = self._llguidance.LLMatcher
        with_special = params.structural_tag is not None
        tokenizer = self._tokenizer(with_special)
        is_error, messages = matcher.validate_grammar_with_warnings(text, tokenizer)
        if is_error and "oneOf constraints are not supported" in messages[0]:
            raise GrammarError(_ONE_OF)
        if is_error:
            raise GrammarError(_one_line(messages[0]))
        return bytes([with_special]) + text.encode()

    def open(self, payload: bytes) -> CompiledGrammar:
        limits = self._llguidance.LLParserLimits(
            max_items_in_row=MAX_ITEMS, step_max_items=10 * MAX_ITEMS
        )
        matcher = self._llguidance.LLMatcher(
            self._tokenizer(bool(payload[0])), payload[1:].decode(), log_level=0, limits=limits
        )
        if matcher.is_error():
            raise GrammarError(_one_line(matcher.get_error()))
        return _Grammar(matcher, len(payload), self._eos_ids, self._byte_ids)

    def _tokenizer(self, with_special: bool) -> Any:
        """llguidance's view of the vocabulary; see XGrammar for what special tokens are."""
        if with_special not in self._tokenizers:
            hidden = set(self._eos_ids)
            if not with_special:
                hidden |= self._vocabulary.special_ids
            self._tokenizers[with_special] = self._llguidance.LLTokenizer(
                self._llguidance.TokenizerWrapper(_Tokens(self._vocabulary, hidden)),
                n_vocab=len(self._vocabulary.tokens),
                eos_token=list(self._vocabulary.eos_ids),
            )
        return self._tokenizers[with_special]

    def _lark(self, params: StructuredOutputsParams, read: Schema | None) -> str:
        if params.structural_tag is not None and read is not None:
            rule = partial(_json_rule, params)
            return TagGrammar(rule, self._regex_text).write(read)
        if read is not None:
            return f"start: {_json_rule(params, read, MAX_WHITESPACE)}"
        if params.regex is not None:
            return f"start: /{self._regex_text(params.regex)}/"
        if params.choice is not None:
            return f"start: {' | '.join(json.dumps(choice) for choice in params.choice)}"
        grammar = params.grammar or ""
        return grammar if is_lark(grammar) else _from_ebnf(grammar)

    def _regex_text(self, pattern: str) -> str:
        return str(self._llguidance.regex_to_lark(pattern))


class _Tokens:
    def __init__(self, vocabulary: Vocabulary, special_ids: set[int]) -> None:
        self.tokens = vocabulary.tokens
        self.special_token_ids = sorted(special_ids)
        self.eos_token_id = vocabulary.eos_ids[0]
        self.bos_token_id = None

    def __call__(self, text: bytes) -> list[int]:
        """Tokens of a forced text; _ANY_TOKENS leaves nothing forced."""
        return []


class _Grammar:
    def __init__(
        self, matcher: Any, text_bytes: int, eos_ids: frozenset[int], byte_ids: dict[bytes, int]
    ) -> None:
        self._matcher = matcher
        self._eos_ids = eos_ids
        self._byte_ids = byte_ids
        self.num_bytes = _GRAMMAR_BYTES + text_bytes

    def matcher(self) -> _Matcher:
        return _Matcher(self._matcher.deep_copy(), self._eos_ids, self._byte_ids)


class _Matcher:
    __slots__ = ("_byte_ids", "_eos_ids", "_matcher", "is_terminated")

    def __init__(self, matcher: Any, eos_ids: frozenset[int], byte_ids: dict[bytes, int]) -> None:
        self._matcher = matcher
        self._eos_ids = eos_ids
        self._byte_ids = byte_ids
        self.is_terminated = False

    def fill(self, masks: Masks, row: int) -> None:
        address = masks.ctypes.data + row * masks.strides[0]
        self._matcher.unsafe_compute_mask_ptr(address, masks.shape[1] * masks.itemsize)
        if self._matcher.is_error():
            is_empty = "NoExtension" in self._matcher.get_error()
            reason = "no text satisfies it" if is_empty else self._matcher.get_error()
            raise MatcherError(_one_line(reason))

    def accept(self, token_id: int) -> bool:
        if token_id in self._eos_ids:
            self.is_terminated = bool(self._matcher.is_accepting())
            return self.is_terminated
        return bool(self._matcher.consume_token(token_id))

    def num_allowed(self, token_ids: Sequence[int]) -> int:
        return int(self._matcher.validate_tokens(list(token_ids)))

    def rollback(self, num_tokens: int) -> None:
        self._matcher.rollback(num_tokens)
        self.is_terminated = False

    def forced_text(self) -> bytes:
        return bytes(self._matcher.compute_ff_bytes())

    def accept_bytes(self, data: bytes) -> bool:
        # It takes tokens only: a vocabulary without this byte cannot continue.
        ids = [self._byte_ids.get(data[i : i + 1], -1) for i in range(len(data))]
        return -1 not in ids and bool(self._matcher.consume_tokens(ids))


def _json_rule(params: StructuredOutputsParams, schema: Any, max_whitespace: int) -> str:
    """A schema with everything said, so that the schema itself can change nothing."""
    is_fixed = params.disable_any_whitespace
    free = params.whitespace_pattern or rf"[ \n\t]{{0,{max_whitespace}}}"
    options = {
        "item_separator": ", " if is_fixed else ",",
        "key_separator": ": " if is_fixed else ":",
        "whitespace_flexible": not is_fixed,
        "whitespace_pattern": None if is_fixed else free,
        "coerce_one_of": False,
        "lenient": False,
        "json_allowed_escapes": _ESCAPES,
    }
    document = schema if isinstance(schema, dict) else {} if schema else {"not": {}}
    return f"%json {json.dumps({**document, 'x-guidance': options})}"


def is_lark(grammar: str) -> bool:
    """Whether a grammar is written in Lark's form (`start: ...`), not in EBNF (`root ::= ...`)."""
    return "::=" not in grammar


def _from_ebnf(grammar: str) -> str:
    from llguidance.gbnf_to_lark import gbnf_to_lark

    try:
        return str(gbnf_to_lark(grammar))
    except Exception as error:
        # Its errors have no common class.
        raise GrammarError(_one_line(str(error))) from None


def _one_line(text: str) -> str:
    """The words of an llguidance error, which marks its place over several lines."""
    text = text.split("<state>")[0]
    return re.sub(r"\s+", " ", text).strip()[:400]
