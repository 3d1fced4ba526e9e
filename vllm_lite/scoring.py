"""Scores of pairs of texts: the prompts that rerankers read, and what vectors say of a pair.

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
# The tokens of a listwise prompt behind the query and behind each document.
_QUERY_MARK, _DOCUMENT_MARK = "<|rerank_token|>", "<|embed_token|>"
_LIST_TASK = (
    "You are a search relevance expert who can determine a ranking of the passages based on how "
    "relevant they are to the query. If the query is a question, how relevant a passage is depends "
    "on how well it answers the question. If not, try to analyze the intent of the query and "
    "assess how well each passage satisfies the intent. If an instruction is provided, you should "
    "follow the instruction when determining the ranking."
)


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


def list_prompts(
    queries: Sequence[str], documents: Sequence[str], instruction: str | None = None
) -> list[str]:
    """A listwise reranker's prompts: of one query with all documents, or of each pair."""
    queries, instruction = [_unmarked(q) for q in queries], instruction and _unmarked(instruction)
    documents = [_unmarked(document) for document in documents]
    if len(queries) == 1:
        return [_list_prompt(queries[0], documents, instruction)]
    pairs = zip(queries, documents, strict=True)
    return [_list_prompt(query, [document], instruction) for query, document in pairs]


def _unmarked(text: str) -> str:
    return text.replace(_QUERY_MARK, "").replace(_DOCUMENT_MARK, "")


def _list_prompt(query: str, documents: Sequence[str], instruction: str | None) -> str:
    """The prompt that jina-reranker-v3 was trained for."""
    told = f"<instruct>\n{instruction}\n</instruct>\n" if instruction else ""
    passages = "".join(
        f'<passage id="{i}">\n{document}{_DOCUMENT_MARK}\n</passage>\n'
        for i, document in enumerate(documents)
    )
    return (
        f"<|im_start|>system\n{_LIST_TASK}<|im_end|>\n<|im_start|>user\n"
        f"I will provide you with {len(documents)} passages, each indicated by a numerical "
        f"identifier. Rank the passages based on their relevance to query: {query}\n"
        f"{told}{passages}<query>\n{query}{_QUERY_MARK}\n</query><|im_end|>\n"
        "<|im_start|>assistant\n<think>\n\n</think>\n\n"
    )


def list_scores(pooled: Sequence[Vectors], num_documents: int) -> list[float]:
    """Scores of all documents; each prompt of `pooled` has their vectors, and the query's last.

    Raises RequestError where a cut left some out.
    """
    scores = [similarity("cosine", rows[-1], row) for rows in pooled for row in rows[:-1]]
    if len(scores) != num_documents:
        raise RequestError(
            "truncate_prompt_tokens cuts off the query or whole documents, which this model reads "
            "at once; leave it out, send fewer documents, or cut them by max_tokens_per_doc",
            "truncate_prompt_tokens",
        )
    return scores


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
