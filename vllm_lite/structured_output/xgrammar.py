"""Constraints by xgrammar: compiled in one process, opened and followed in another.

A compiled grammar travels as compressed text. xgrammar brings torch, so it is imported only
where a grammar is compiled or opened.
"""

from __future__ import annotations

import json
import zlib
from typing import TYPE_CHECKING, Any

from vllm_lite.structured_output.grammar import (
    MAX_WHITESPACE,
    GrammarError,
    MatcherError,
    Vocabulary,
)
from vllm_lite.structured_outputs_params import StructuredOutputsParams

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vllm_lite.structured_output.grammar import CompiledGrammar, Masks
    from vllm_lite.structured_output.schema import Schema

# Of a compiled grammar as text.
MAX_TEXT_BYTES = 48 << 20


class XGrammar:
    def __init__(self, vocabulary: Vocabulary) -> None:
        import xgrammar

        self._xgrammar = xgrammar
        self._tokens = vocabulary.tokens
        self._special_ids = vocabulary.special_ids
        self._eos_ids = vocabulary.eos_ids
        self._infos: dict[bool, Any] = {}

    def compile(self, params: StructuredOutputsParams, read: Schema | None) -> bytes:
        """Compile a constraint to what `open` takes; `read` is its JSON schema or structural tag.

        Raises GrammarError with xgrammar's own words.
        """
        with_special = params.structural_tag is not None
        compiler = self._xgrammar.GrammarCompiler(
            self._info(with_special), max_threads=1, cache_enabled=False
        )
        try:
            text = self._compile(compiler, params, read).serialize_json()
        except (RuntimeError, ValueError, TypeError) as error:
            raise GrammarError(_first_line(error)) from None
        if len(text) > MAX_TEXT_BYTES:
            raise GrammarError("it is too big once compiled; simplify it")
        return bytes([with_special]) + zlib.compress(text.encode(), 1)

    def open(self, payload: bytes) -> CompiledGrammar:
        text = zlib.decompress(payload[1:]).decode()
        info = self._info(bool(payload[0]))
        grammar = self._xgrammar.CompiledGrammar.deserialize_json(text, info)
        return _Grammar(grammar, self._xgrammar.GrammarMatcher)

    def _compile(self, compiler: Any, params: StructuredOutputsParams, read: Schema | None) -> Any:
        if params.structural_tag is not None:
            tag = self._compact(read) if params.disable_any_whitespace else read
            return compiler.compile_structural_tag(json.dumps(tag))
        if read is not None:
            return compiler.compile_json_schema(
                json.dumps(read),
                any_whitespace=not params.disable_any_whitespace,
                max_whitespace_cnt=None if params.disable_any_whitespace else MAX_WHITESPACE,
            )
        if params.regex is not None:
            return compiler.compile_regex(params.regex)
        if params.choice is not None:
            # Literals of xgrammar's EBNF have JSON's escapes.
            quoted = (json.dumps(choice, ensure_ascii=False) for choice in params.choice)
            return compiler.compile_grammar(f"root ::= {' | '.join(quoted)}")
        return compiler.compile_grammar(params.grammar)

    def _compact(self, part: Any) -> Any:
        """A part of a structural tag without free white space in its JSON.

        Where texts or another notation have marks to avoid, which a grammar of its own would not
        know, one character may stand in a place.
        """
        if isinstance(part, list):
            return [self._compact(one) for one in part]
        if not isinstance(part, dict):
            return part
        if "json_schema" not in part:
            return {key: self._compact(value) for key, value in part.items()}
        if part.get("excludes") or part.get("style", "json") != "json":
            return {**part, "max_whitespace_cnt": 1}
        schema = json.dumps(part["json_schema"])
        grammar = self._xgrammar.Grammar.from_json_schema(schema, any_whitespace=False)
        return {"type": "grammar", "grammar": str(grammar)}

    def _info(self, with_special: bool) -> Any:
        """xgrammar's view of the vocabulary.

        Special tokens are no text, or text inside JSON could be lost when they are skipped;
        only structural tags may name them.
        """
        if with_special not in self._infos:
            hidden = self._special_ids if not with_special else frozenset(self._eos_ids)
            self._infos[with_special] = self._xgrammar.TokenizerInfo(
                [b"" if i in hidden else token for i, token in enumerate(self._tokens)],
                vocab_type=self._xgrammar.VocabType.RAW,
                vocab_size=len(self._tokens),
                stop_token_ids=list(self._eos_ids),
            )
        return self._infos[with_special]


class _Grammar:
    def __init__(self, grammar: Any, matcher: Any) -> None:
        self._grammar = grammar
        self._matcher = matcher
        self.num_bytes = int(grammar.memory_size_bytes)

    def matcher(self) -> _Matcher:
        return _Matcher(self._matcher(self._grammar))


class _Matcher:
    __slots__ = ("_matcher",)

    def __init__(self, matcher: Any) -> None:
        self._matcher = matcher

    def fill(self, masks: Masks, row: int) -> None:
        try:
            self._matcher.fill_next_token_bitmask(masks, row)
        except RuntimeError as error:
            raise MatcherError(_first_line(error)) from None

    def accept(self, token_id: int) -> bool:
        return bool(self._matcher.accept_token(token_id))

    def num_allowed(self, token_ids: Sequence[int]) -> int:
        number = 0
        for token_id in token_ids:
            if not self._matcher.accept_token(token_id):
                break
            number += 1
        if number:
            self._matcher.rollback(number)
        return number

    def rollback(self, num_tokens: int) -> None:
        self._matcher.rollback(num_tokens)

    def forced_text(self) -> bytes:
        try:
            return bytes(self._matcher.find_jump_forward_string().encode())
        except UnicodeDecodeError:
            # Inside a character.
            return b""

    def accept_bytes(self, data: bytes) -> bool:
        return bool(self._matcher.accept_string(data))

    @property
    def is_terminated(self) -> bool:
        return bool(self._matcher.is_terminated())


def _first_line(error: Exception) -> str:
    """The first line of an error, without xgrammar's source position."""
    text = str(error).strip().split("\n")[0]
    return text.partition(".cc:")[2].partition(": ")[2] or text
