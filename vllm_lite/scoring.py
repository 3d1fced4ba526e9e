"""Scores of pairs of texts: the prompts that a cross-encoder reads, and what vectors say of a pair.

Used by LLM.score() and by the routes for scores; knows no engine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vllm_lite.config.facts import ModelFacts
from vllm_lite.errors import RequestError
from vllm_lite.tokenizer.fitting import PairLimits, cut, cut_text, encode_fitted, encode_pair
from vllm_lite.tokenizer.tokenizer import Tokenizer

Vectors = NDArray[np.float32]


def check_counts(num_first: int, num_second: int, names: tuple[str, str]) -> None:
    """Raise RequestError unless the texts pair up 1:1, 1:N or N:N; `names` are their fields."""
    for count, name in zip((num_first, num_second), names, strict=True):
        if not count:
            raise RequestError.about(name, "must not be empty")
    if num_first not in (1, num_second):
        raise RequestError(
            f"{names[0]} and {names[1]} pair up 1:1, 1:N or N:N, not {num_first}:{num_second}",
            names[0],
        )


class PairEncoder:
    """Makes a cross-encoder's prompts."""

    def __init__(self, tokenizer: Tokenizer, facts: ModelFacts) -> None:
        self._tokenizer = tokenizer
        config, pooling = facts.hf_config, facts.pooling
        self._has_types = pooling is not None and pooling.num_token_types > 1
        # Language models that were made rerankers read one text after the other.
        is_made = pooling is not None and bool(pooling.method)
        self._has_separator = config.get("use_sep_token", not is_made)

    def encode(self, first: str, second: str, limits: PairLimits) -> tuple[list[int], int | None]:
        """The ids of a pair, and the position of the first one of type 1; None where types are 0.

        Raises RequestError for a text that cannot be encoded.
        """
        if not self._has_separator:
            return self.encode_text("".join(self.cut(first, second, limits)), limits), None
        ids, types = encode_pair(self._tokenizer, first, second, limits)
        return ids, types.index(1) if self._has_types and 1 in types else None

    def cut(self, first: str, second: str, limits: PairLimits) -> tuple[str, str]:
        """Both texts with as many tokens as each may have."""
        first = cut_text(self._tokenizer, first, limits.first)
        return first, cut_text(self._tokenizer, second, limits.second)

    def encode_text(self, text: str, limits: PairLimits) -> list[int]:
        """The ids of a pair that a template wrote as one text."""
        if limits.prompt is None or limits.side is not None:
            return cut(self._tokenizer.encode(text), limits.prompt, limits.side)
        return encode_fitted(self._tokenizer, text, limits.prompt, special=True)


def pair_messages(first: str, second: str) -> list[dict[str, Any]]:
    """The conversation that a score's template renders."""
    return [{"role": "query", "content": first}, {"role": "document", "content": second}]


def similarity(kind: str, first: Vectors, second: Vectors) -> float:
    """How similar two vectors are: cosine or dot, or the distance's opposite, euclidean's or
    manhattan's."""
    return _SIMILARITIES[kind](first.astype(np.float64), second.astype(np.float64))


def _cosine(first: NDArray[np.float64], second: NDArray[np.float64]) -> float:
    lengths = np.linalg.norm(first) * np.linalg.norm(second)
    return min(max(float(first @ second / max(float(lengths), 1e-12)), -1.0), 1.0)


_SIMILARITIES: dict[str, Callable[[NDArray[np.float64], NDArray[np.float64]], float]] = {
    "cosine": _cosine,
    "dot": lambda first, second: float(first @ second),
    "euclidean": lambda first, second: -float(np.linalg.norm(first - second)),
    "manhattan": lambda first, second: -float(np.abs(first - second).sum()),
}


def maxsim(query: Vectors, document: Vectors) -> float:
    """ColBERT's score: the sum over the query's tokens of each one's best match."""
    return float((query @ document.T).max(axis=1).sum())


def score_vectors(pooled: Sequence[Vectors], num_first: int, facts: ModelFacts) -> list[float]:
    """Scores of the pairs whose texts became `pooled`, the first texts before the second ones."""
    assert facts.pooling is not None
    firsts, seconds = pooled[:num_first], pooled[num_first:]
    if num_first == 1:
        firsts = [firsts[0]] * len(seconds)
    if facts.pooling.score_type == "late-interaction":
        return [maxsim(*pair) for pair in zip(firsts, seconds, strict=True)]
    kind = facts.pooling.similarity_fn_name
    return [similarity(kind, *pair) for pair in zip(firsts, seconds, strict=True)]
