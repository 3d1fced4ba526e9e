"""From a constraint to a compiled grammar: which engine, in what form, and the words of a refusal.

xgrammar comes first; what it would not enforce exactly goes to llguidance, unless a backend was
chosen. Runs where it may be killed: time and memory are limited from outside.
"""

from __future__ import annotations

import json
import random
import threading
import time
from typing import TYPE_CHECKING

import msgspec

from vllm_lite.structured_output.grammar import (
    CompiledGrammar,
    GrammarError,
    MatcherError,
    Refusal,
    Vocabulary,
)
from vllm_lite.structured_output.guidance import Guidance, is_lark
from vllm_lite.structured_output.patterns import full_match
from vllm_lite.structured_output.schema import Gaps, Schema, read_schema
from vllm_lite.structured_output.tag_lark import TagError, read_structural_tag
from vllm_lite.structured_output.xgrammar import XGrammar
from vllm_lite.structured_outputs_params import StructuredOutputsParams

if TYPE_CHECKING:
    from vllm_lite.config.vllm import VllmConfig

XGRAMMAR, GUIDANCE = "xgrammar", "guidance"
# Processor seconds for one constraint.
MAX_COMPILE_SECONDS = 15.0
# Tokens by which a new grammar is tried out, and seconds that one may take.
NUM_TRIAL_TOKENS = 48
MAX_TRIAL_SECONDS = 0.25


class Tokenize(msgspec.Struct, tag=True):
    """Tokenize a text as the model's tokenizer does, without special tokens."""

    text: str


class Job(msgspec.Struct, tag=True):
    """Compile a canonical constraint."""

    params: StructuredOutputsParams
    # The process died with the default engine.
    by_guidance: bool = False


def backend_of(config: VllmConfig) -> str:
    """`auto`, `xgrammar` or `guidance`; without the fallback, auto is xgrammar alone."""
    options = config.structured_outputs
    if options.backend == "auto" and options.disable_fallback:
        return "xgrammar"
    return options.backend


class Compiled(msgspec.Struct, tag=True):
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
        self._engine(GUIDANCE if self._backend == GUIDANCE else XGRAMMAR)

    def _engine(self, name: str) -> XGrammar | Guidance:
        with self._lock:
            if name not in self._by_name:
                kind = XGrammar if name == XGRAMMAR else Guidance
                self._by_name[name] = kind(self.vocabulary)
            return self._by_name[name]

    def open(self, compiled: Compiled) -> CompiledGrammar:
        return self._engine(compiled.engine).open(compiled.payload)

    def compile(
        self, params: StructuredOutputsParams, *, by_guidance: bool = False
    ) -> Compiled | Refusal:
        """Compile a canonical constraint; a Refusal says what is wrong with it.

        `by_guidance` leaves xgrammar out.
        """
        try:
            return self._compile(params, GUIDANCE if by_guidance else self._backend)
        except GrammarError as error:
            return Refusal.of(params.constraint, f": {error}")
        except RecursionError:
            return Refusal.of(params.constraint, ": it is nested too deeply")

    def _compile(self, params: StructuredOutputsParams, backend: str) -> Compiled:
        params, read, gaps = _read(params)
        unlike = ", ".join(sorted(gaps.xgrammar))
        if backend == GUIDANCE or (unlike and backend != XGRAMMAR):
            if gaps.guidance:
                beside = f" beside {unlike}" if unlike else ""
                named = ", ".join(sorted(gaps.guidance))
                raise GrammarError(f"{named} cannot be enforced exactly{beside}")
            try:
                return self._compile_by(GUIDANCE, params, read)
            except TagError as error:
                because = f"its schema uses {unlike}, but " if unlike else ""
                raise GrammarError(f"{because}{error}") from None
        if unlike:
            raise GrammarError(
                f"the backend xgrammar does not enforce: {unlike}; the backend guidance may"
            )
        try:
            return self._compile_by(XGRAMMAR, params, read)
        except GrammarError as refused:
            if backend == XGRAMMAR or gaps.guidance:
                raise
            try:
                return self._compile_by(GUIDANCE, params, read)
            except GrammarError:
                raise refused from None

    def _compile_by(
        self, name: str, params: StructuredOutputsParams, read: Schema | None
    ) -> Compiled:
        return self._checked(Compiled(name, self._engine(name).compile(params, read)))

    def _checked(self, compiled: Compiled) -> Compiled:
        """Follow it for some tokens: one that no text satisfies, or that is slow, shows here."""
        import numpy as np

        rng = random.Random(0)
        vocabulary = self.vocabulary
        masks = np.zeros((1, vocabulary.mask_words), np.int32)
        matcher = self.open(compiled).matcher()
        for step in range(NUM_TRIAL_TOKENS):
            start = time.thread_time()
            try:
                matcher.fill(masks, 0)
            except MatcherError as error:
                raise GrammarError(str(error)) from None
            bits = np.unpackbits(masks[0].view(np.uint8), bitorder="little")
            ids = np.flatnonzero(bits[: len(vocabulary.tokens)])
            if not step and not len(ids):
                raise GrammarError("no text satisfies it")
            ids = ids[~np.isin(ids, vocabulary.eos_ids)]
            if not len(ids):
                break
            is_accepted = matcher.accept(int(ids[rng.randrange(len(ids))]))
            if time.thread_time() - start > MAX_TRIAL_SECONDS:
                raise GrammarError("it takes too long to follow; simplify it")
            if not is_accepted:
                break
        return compiled


def _read(params: StructuredOutputsParams) -> tuple[StructuredOutputsParams, Schema | None, Gaps]:
    """A constraint as the engines take it, its JSON schema or structural tag, and what in it
    the engines would not enforce exactly.
    """
    close_objects = params.disable_additional_properties
    read: Schema | None = None
    gaps = Gaps()
    if params.json_object:
        read = {"type": "object"}
    elif params.json is not None:
        schema = json.loads(params.json) if isinstance(params.json, str) else params.json
        read, gaps = read_schema(schema, close_objects=close_objects)
    elif params.structural_tag is not None:
        read, gaps = read_structural_tag(params.structural_tag, close_objects=close_objects)
    elif params.regex is not None:
        params = msgspec.structs.replace(params, regex=full_match(params.regex))
    elif params.grammar is not None and is_lark(params.grammar):
        gaps.xgrammar.add("Lark grammars")
    if params.whitespace_pattern is not None:
        gaps.xgrammar.add("whitespace_pattern")
    return params, read, gaps
