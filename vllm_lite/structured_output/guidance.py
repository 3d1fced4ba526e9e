"""Constraints by llguidance: a grammar is text, and sequences build its automata as they go.

Enforces more of JSON Schema than xgrammar does, and says by name what it does not.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from vllm_lite.structured_output.grammar import GrammarError, MatcherError, Vocabulary
from vllm_lite.structured_output.patterns import with_ascii_classes
from vllm_lite.structured_output.xgrammar import MAX_WHITESPACE
from vllm_lite.structured_outputs_params import StructuredOutputsParams

if TYPE_CHECKING:
    from vllm_lite.structured_output.grammar import CompiledGrammar, Masks
    from vllm_lite.structured_output.schema import Schema

# Without \u and \/ a key has one spelling, so that none can be passed off as another.
_ESCAPES = '"\\bfnrt'
# Any tokens that spell the text will do: the model, not the engine, knows which are usual.
_ANY_TOKENS = '%llguidance {"no_forcing": true}'
# Ways in which a text may be read at one place: an object's optional keys make some each.
MAX_ITEMS = 10_000
# llguidance tells its automata's size to nobody: what a simple grammar takes.
_GRAMMAR_BYTES = 1 << 20


class Guidance:
    """llguidance for one vocabulary."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        import llguidance

        self._llguidance = llguidance
        self._eos_ids = frozenset(vocabulary.eos_ids)
        self._byte_ids = {t: i for i, t in enumerate(vocabulary.tokens) if len(t) == 1}
        self._tokenizer = llguidance.LLTokenizer(
            llguidance.TokenizerWrapper(_Tokens(vocabulary)),
            n_vocab=len(vocabulary.tokens),
            eos_token=list(vocabulary.eos_ids),
        )

    def compile(self, params: StructuredOutputsParams, schema: Schema | None) -> bytes:
        """Check a constraint and write it as llguidance's grammar, for `open`.

        Raises GrammarError with llguidance's own words.
        """
        try:
            text = self._grammar(params, schema)
        except (RuntimeError, ValueError, TypeError, KeyError) as error:
            raise GrammarError(_one_line(str(error))) from None
        matcher = self._llguidance.LLMatcher
        is_error, messages = matcher.validate_grammar_with_warnings(text, self._tokenizer)
        if is_error:
            raise GrammarError(_one_line(messages[0]))
        return text.encode()

    def open(self, payload: bytes) -> CompiledGrammar:
        """The grammar that `compile` made."""
        limits = self._llguidance.LLParserLimits(
            max_items_in_row=MAX_ITEMS, step_max_items=10 * MAX_ITEMS
        )
        matcher = self._llguidance.LLMatcher(
            self._tokenizer, payload.decode(), log_level=0, limits=limits
        )
        if matcher.is_error():
            raise GrammarError(_one_line(matcher.get_error()))
        return _Grammar(matcher, len(payload), self._eos_ids, self._byte_ids)

    def _grammar(self, params: StructuredOutputsParams, schema: Schema | None) -> str:
        lark = self._lark(params, schema)
        return str(self._llguidance.LLMatcher.grammar_from_lark(f"{lark}\n{_ANY_TOKENS}\n"))

    def _lark(self, params: StructuredOutputsParams, schema: Schema | None) -> str:
        if schema is not None:
            options = {"x-guidance": _json_options(params)}
            return f"start: %json {json.dumps({**schema, **options})}"
        if params.regex is not None:
            return f"start: /{self._llguidance.regex_to_lark(with_ascii_classes(params.regex))}/"
        if params.choice is not None:
            return f"start: {' | '.join(json.dumps(choice) for choice in params.choice)}"
        if params.structural_tag is not None:
            return self._structural_tag(json.loads(params.structural_tag))
        grammar = params.grammar or ""
        return grammar if is_lark(grammar) else _from_ebnf(grammar)

    def _structural_tag(self, tag: Any) -> str:
        """The older form of structural tags, with `structures` and `triggers`."""
        if not isinstance(tag, dict) or "structures" not in tag:
            raise GrammarError("structural tags with `format` need the backend xgrammar")
        triggers = [str(trigger) for trigger in tag["triggers"]]
        tags = []
        for structure in tag["structures"]:
            begin = str(structure["begin"])
            trigger = next((one for one in triggers if begin.startswith(one)), None)
            if trigger is None:
                raise GrammarError(f"no trigger begins the structural tag {begin!r:.80}")
            one = self._llguidance.StructTag(
                trigger=trigger, begin=begin, grammar=structure["schema"], end=structure["end"]
            )
            tags.append(one)
        return str(self._llguidance.StructTag.to_grammar(tags, assume_special=False))


class _Tokens:
    """The vocabulary as llguidance reads it."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.tokens = vocabulary.tokens
        self.special_token_ids = sorted(vocabulary.special_ids | set(vocabulary.eos_ids))
        self.eos_token_id = vocabulary.eos_ids[0]
        self.bos_token_id = None

    def __call__(self, text: bytes) -> list[int]:
        """Tokens of a forced text; _ANY_TOKENS leaves nothing forced."""
        return []


class _Grammar:
    def __init__(
        self,
        matcher: Any,
        text_bytes: int,
        eos_ids: frozenset[int],
        byte_ids: dict[bytes, int],
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

    def accept_bytes(self, data: bytes) -> bool:
        # It takes tokens only, so a vocabulary without this byte cannot go on from here.
        ids = [self._byte_ids.get(data[i : i + 1], -1) for i in range(len(data))]
        return -1 not in ids and bool(self._matcher.consume_tokens(ids))


def _json_options(params: StructuredOutputsParams) -> dict[str, Any]:
    """Everything is said, so that the schema itself can change nothing."""
    is_fixed = params.disable_any_whitespace
    pattern = params.whitespace_pattern or rf"[ \n\t]{{0,{MAX_WHITESPACE}}}"
    return {
        "item_separator": ", " if is_fixed else ",",
        "key_separator": ": " if is_fixed else ":",
        "whitespace_flexible": not is_fixed,
        "whitespace_pattern": None if is_fixed else pattern,
        "coerce_one_of": False,
        "lenient": False,
        "json_allowed_escapes": _ESCAPES,
    }


def is_lark(grammar: str) -> bool:
    """Whether a grammar is written in Lark's form (`start: ...`), not in EBNF (`root ::= ...`)."""
    return "::=" not in grammar


def _from_ebnf(grammar: str) -> str:
    from llguidance.gbnf_to_lark import gbnf_to_lark

    try:
        return str(gbnf_to_lark(grammar))
    except Exception as error:
        # Its complaints have no class in common.
        raise GrammarError(_one_line(str(error))) from None


def _one_line(text: str) -> str:
    """llguidance draws the place of a fault over several lines; this keeps the words."""
    text = text.split("<state>")[0]
    return re.sub(r"\s+", " ", text).strip()[:400]
