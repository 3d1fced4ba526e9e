"""From a constraint to a compiled grammar: which engine, in what form, and the words of a refusal.

xgrammar comes first; what it would not enforce exactly goes to llguidance, unless a backend was
chosen. Runs where it may be killed: time and memory are limited from outside.
"""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING, NamedTuple

from vllm_lite.structured_output.grammar import (
    CompiledGrammar,
    GrammarError,
    MatcherError,
    Refusal,
    Vocabulary,
)
from vllm_lite.structured_output.guidance import Guidance, is_lark
from vllm_lite.structured_output.patterns import has_look_around
from vllm_lite.structured_output.schema import Schema, read_schema
from vllm_lite.structured_output.xgrammar import XGrammar

if TYPE_CHECKING:
    from vllm_lite.structured_outputs_params import StructuredOutputsParams

XGRAMMAR, GUIDANCE = "xgrammar", "guidance"


class Compiled(NamedTuple):
    """A grammar in the form in which it travels."""

    engine: str
    payload: bytes


class GrammarEngines:
    """Both engines for one vocabulary; each is loaded when it is first needed."""

    def __init__(self, vocabulary: Vocabulary, backend: str = "auto") -> None:
        self.vocabulary = vocabulary
        self._backend = backend

        self._lock = threading.Lock()
        self._by_name: dict[str, XGrammar | Guidance] = {}

    def load(self) -> None:
        """Load the engine that comes first."""
        self._engine(GUIDANCE if self._backend == GUIDANCE else XGRAMMAR)

    def _engine(self, name: str) -> XGrammar | Guidance:
        with self._lock:
            if name not in self._by_name:
                kind = XGrammar if name == XGRAMMAR else Guidance
                self._by_name[name] = kind(self.vocabulary)
            return self._by_name[name]

    def open(self, compiled: Compiled) -> CompiledGrammar:
        """The grammar that `compile` made, here or in another process."""
        return self._engine(compiled.engine).open(compiled.payload)

    def compile(self, params: StructuredOutputsParams) -> Compiled | Refusal:
        """Compile a canonical constraint; a Refusal says what is wrong with it."""
        name = params.constraint
        try:
            return self._compile(params)
        except GrammarError as error:
            return Refusal(f"structured_outputs.{name}: {error}", f"structured_outputs.{name}")
        except RecursionError:
            reason = "it is nested too deeply"
            return Refusal(f"structured_outputs.{name}: {reason}", f"structured_outputs.{name}")

    def _compile(self, params: StructuredOutputsParams) -> Compiled:
        schema, gaps = _schema_of(params)
        gaps |= _text_gaps(params)
        if self._backend == GUIDANCE or (gaps and self._backend != XGRAMMAR):
            return self._compile_by(GUIDANCE, params, schema)
        if gaps:
            raise GrammarError(
                f"the backend xgrammar does not enforce: {', '.join(sorted(gaps))}; "
                "the backend guidance may"
            )
        try:
            return self._compile_by(XGRAMMAR, params, schema)
        except GrammarError as refused:
            if self._backend == XGRAMMAR:
                raise
            try:
                return self._compile_by(GUIDANCE, params, schema)
            except GrammarError:
                raise refused from None

    def _compile_by(
        self, name: str, params: StructuredOutputsParams, schema: Schema | None
    ) -> Compiled:
        return self._checked(Compiled(name, self._engine(name).compile(params, schema)))

    def _checked(self, compiled: Compiled) -> Compiled:
        """Open it once: a grammar that no text satisfies shows in its first mask."""
        import numpy as np

        masks = np.zeros((1, self.vocabulary.mask_words), np.int32)
        try:
            self.open(compiled).matcher().fill(masks, 0)
        except MatcherError:
            masks[:] = 0
        if not masks.any():
            raise GrammarError("no text satisfies it")
        return compiled


def _schema_of(params: StructuredOutputsParams) -> tuple[Schema | None, set[str]]:
    """The JSON schema as the engines take it, and its gaps; None for other constraints."""
    if params.json_object:
        return {"type": "object"}, set()
    if params.json is None:
        return None, set()
    schema = json.loads(params.json) if isinstance(params.json, str) else params.json
    read, gaps = read_schema(schema, close_objects=params.disable_additional_properties)
    return read, gaps


def _text_gaps(params: StructuredOutputsParams) -> set[str]:
    """What beside a schema's keywords xgrammar does not do."""
    gaps = set()
    if params.whitespace_pattern is not None:
        gaps.add("whitespace_pattern")
    if params.regex is not None and has_look_around(params.regex):
        raise GrammarError("the expression looks ahead or behind, which cannot be enforced")
    if params.grammar is not None and is_lark(params.grammar):
        gaps.add("Lark grammars")
    return gaps
