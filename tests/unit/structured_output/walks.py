"""A vocabulary of bytes, and random walks through a grammar: texts that no model would write."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from vllm_lite.config.structured_outputs import StructuredOutputsConfig
from vllm_lite.structured_output.canonical import canonical
from vllm_lite.structured_output.compiler import GrammarEngines
from vllm_lite.structured_output.grammar import CompiledGrammar, Refusal, Vocabulary
from vllm_lite.structured_outputs_params import StructuredOutputsParams

EOS, SPECIAL = 256, 257
# Every byte, two special tokens, and tokens that begin in one place of JSON and end in another.
MIXED = [b'{"', b'": ', b'",', b"true", b'"a"', b"  ", "é".encode()]
BYTES = Vocabulary(
    tokens=[*(bytes([byte]) for byte in range(256)), b"<eos>", b"<mark>", *MIXED],
    special_ids=frozenset({EOS, SPECIAL}),
    eos_ids=(EOS,),
)
# Half of all steps choose among these, so that texts end.
_LIKELY = frozenset(b'}]",0123456789abc-:')


def schema_cases() -> list[dict[str, Any]]:
    """The committed JSON schemas: `name`, `schema`, and a word of the refusal where one is due."""
    lines = (Path(__file__).parent / "schemas.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def compiled(engines: GrammarEngines, **constraint: Any) -> CompiledGrammar | Refusal:
    """The grammar of a constraint, or why it is refused."""
    params = canonical(StructuredOutputsParams(**constraint), StructuredOutputsConfig())
    found = engines.compile(params)
    return found if isinstance(found, Refusal) else engines.open(found)


def allowed(row: npt.NDArray[np.int32]) -> list[int]:
    """The token ids of a mask."""
    bits = np.unpackbits(row.view(np.uint8), bitorder="little")
    return [int(i) for i in np.flatnonzero(bits[: len(BYTES.tokens)])]


def walk(
    grammar: CompiledGrammar, rng: random.Random, limit: int = 700, begin: bytes = b""
) -> bytes | None:
    """A random text of the grammar behind `begin`; None where it had not ended by `limit`."""
    matcher = grammar.matcher()
    masks = np.zeros((1, BYTES.mask_words), np.int32)
    text = begin
    for byte in begin:
        assert matcher.accept(byte)
    for _ in range(limit):
        matcher.fill(masks, 0)
        ids = allowed(masks[0])
        assert ids, f"nothing may follow {text!r}"
        likely = [i for i in ids if i in _LIKELY]
        if EOS in ids and rng.random() < 0.3:
            token_id = EOS
        else:
            token_id = rng.choice(likely if likely and rng.random() < 0.5 else ids)
        assert matcher.accept(token_id)
        if token_id == EOS:
            assert matcher.is_terminated
            return text
        text += BYTES.tokens[token_id]
    return None


def follows(grammar: CompiledGrammar, text: bytes) -> bool:
    """Whether the grammar takes `text`, byte by byte, as a whole."""
    matcher = grammar.matcher()
    masks = np.zeros((1, BYTES.mask_words), np.int32)
    for token_id in (*text, EOS):
        matcher.fill(masks, 0)
        if token_id not in allowed(masks[0]):
            return False
        assert matcher.accept(token_id)
    return True
