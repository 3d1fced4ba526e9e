"""Makes texts of an exact number of tokens.

Text and not ids, because every server takes text. Not every sequence of ids survives being
decoded and encoded again, so a text is made in rounds and its length is always counted, never
assumed.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import numpy as np

from vllm_lite.config.sources import resolve_model_source
from vllm_lite.errors import CheckpointError, UsageError
from vllm_lite.tokenizer.tokenizer import Tokenizer, read_parts

_ROUNDS = 16


def open_tokenizer(name: str, *, mode: str = "auto", trust_remote_code: bool = False) -> Tokenizer:
    """The tokenizer of `name`: demo, a directory, a .gguf file or a hub id; UsageError."""
    try:
        path = Path(resolve_model_source(name, weights=False, trust_remote_code=trust_remote_code))
        return Tokenizer(read_parts(path, mode=mode, trust_remote_code=trust_remote_code))
    except CheckpointError as error:
        raise UsageError(
            f"cannot load the tokenizer of {name}: {error}; --tokenizer names another one"
        ) from None


class PromptMaker:
    """Makes texts of wanted lengths from runs of a tokenizer's vocabulary."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    @cached_property
    def ids(self) -> Sequence[int]:
        """The ids that prompts are made of: every ordinary token of whole characters."""
        special = self._tokenizer.added_token_ids
        ids = [i for i in range(self._tokenizer.max_token_id + 1) if i not in special]
        return [i for i in ids if _is_text(self._tokenizer.token_bytes(i))]

    @cached_property
    def num_added(self) -> int:
        """Tokens that the model puts around every text."""
        return len(self._tokenizer.encode("", add_special_tokens=True))

    def count(self, text: str) -> int:
        """Tokens of `text` without those the model adds."""
        return len(self._tokenizer.encode(text, add_special_tokens=False))

    def run(self, start: int, length: int) -> list[int]:
        """`length` ids in the vocabulary's order, from its `start`-th on and around its end."""
        ids = self.ids
        return [ids[(start + i) % len(ids)] for i in range(length)]

    def draw(self, length: int, rng: np.random.Generator) -> list[int]:
        return [self.ids[i] for i in rng.integers(0, len(self.ids), size=length)]

    def fit(self, ids: Sequence[int], rng: np.random.Generator) -> tuple[str, list[int]]:
        """A text that encodes to as many tokens as there are `ids`, and to most of them.

        What comes back longer is cut and what comes back shorter is filled up at random, until
        the length holds. Returns the text and the ids that it really has.
        """
        wanted, current = len(ids), list(ids)
        text, encoded = "", list[int]()
        for _ in range(_ROUNDS):
            text = self._tokenizer.decode(current)
            encoded = self._tokenizer.encode(text, add_special_tokens=False)
            if len(encoded) == wanted:
                break
            current = encoded[:wanted]
            # A character cut in two would come back as another one, and longer.
            while current and self._tokenizer.decode(current[-4:]).endswith("\ufffd"):
                current.pop()
            current += self.draw(wanted - len(current), rng)
        return text, encoded


class UncountedPrompts(PromptMaker):
    """Stands in where no tokenizer is wanted: texts go out as they are, and nothing is counted."""

    def __init__(self) -> None:
        self.num_added = 0

    def count(self, text: str) -> int:
        """Nobody counts."""
        return 0


def _is_text(piece: bytes) -> bool:
    try:
        return bool(piece.decode())
    except UnicodeDecodeError:
        return False
