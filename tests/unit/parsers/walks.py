"""Random texts that a constraint allows: what a model under it could write at worst."""

from __future__ import annotations

import json
import random
from functools import cache
from typing import Any

import torch
import xgrammar as xgr

from vllm_lite.structured_outputs_params import StructuredOutputsParams

LETTERS = [chr(code) for code in range(32, 127)] + ["\n", "\t", "é", "東", "🙂"]
NASTY = ["</", "<", ">", '"', "\\", "{", "}", "[", "]", "\n", "null", "1", "-", "e", " "]


class Walker:
    """Walks at random through the texts of constraints, over one small vocabulary."""

    def __init__(self, markers: list[str], ends: list[str]) -> None:
        letters = sorted(set("".join(markers)))
        self.tokens = list(dict.fromkeys([*LETTERS, *letters, *NASTY, *markers]))
        self.structure = {i for i, token in enumerate(self.tokens) if token in set(markers)}
        self.ends = {i for i, token in enumerate(self.tokens) if token in ends}
        self.nasty = {i for i, token in enumerate(self.tokens) if token in NASTY}
        vocabulary = [token.encode() for token in self.tokens] + [b"</s>"]
        self.stop = len(self.tokens)
        info = xgr.TokenizerInfo(
            vocabulary, vocab_type=xgr.VocabType.RAW, stop_token_ids=[self.stop]
        )
        self.compiler = xgr.GrammarCompiler(info, max_threads=1)
        self.mask = xgr.allocate_token_bitmask(1, len(vocabulary))

    def compile(self, params: StructuredOutputsParams) -> Any:
        if params.structural_tag is not None:
            return self.compiler.compile_structural_tag(params.structural_tag)
        return self.compiler.compile_json_schema(json.dumps(params.json))

    def walk(self, grammar: Any, seed: int, length: int = 60) -> str | None:
        """One text, or None where the walk found no end."""
        choose = random.Random(seed)
        matcher = xgr.GrammarMatcher(grammar)
        parts: list[str] = []
        while len(parts) < 4 * length:
            allowed = self._allowed(matcher)
            if self.stop in allowed and (len(allowed) == 1 or choose.random() < 0.5):
                return "".join(parts)
            allowed.discard(self.stop)
            closing = sorted(allowed & self.structure)
            nasty = sorted(allowed & self.nasty)
            ending = sorted(i for i in allowed if i in self.ends or self.tokens[i] in '"}]')
            if len(parts) > length:
                others = sorted(i for i in allowed if not self.tokens[i].isspace()) or [*allowed]
                token = choose.choice(ending or others)
            elif closing and choose.random() < 0.2:
                token = choose.choice(closing)
            elif nasty and choose.random() < 0.6:
                token = choose.choice(nasty)
            else:
                token = choose.choice(sorted(allowed))
            assert matcher.accept_token(token)
            parts.append(self.tokens[token])
        return None

    def _allowed(self, matcher: Any) -> set[int]:
        if not matcher.fill_next_token_bitmask(self.mask):
            return set(range(self.stop + 1))
        words = self.mask[0].to(torch.int64).tolist()
        return {i for i in range(self.stop + 1) if words[i // 32] >> (i % 32) & 1}


@cache
def walker(markers: tuple[str, ...], ends: tuple[str, ...]) -> Walker:
    return Walker(list(markers), list(ends))
