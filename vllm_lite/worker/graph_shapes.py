"""Which steps of a GPU are captured, as their numbers of tokens and of requests.

Decode steps have as many of both; longer ones, with drafts or parts of prompts, have more tokens.
Each takes time at start, and steps are padded to the next.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from vllm_lite.config.vllm import VllmConfig

# Launch overhead no longer matters in larger steps.
_MOST_TOKENS = 512
# Of steps with parts of prompts. Attention to a long context is split among more processors where
# the step's real number of requests is known.
_PROMPT_TOKENS = (16, 32, 48, 64, 96, *range(128, 256, 32), *range(256, _MOST_TOKENS + 1, 64))
_MOST_CONTEXT = 2048
# Tokens of padding that cost little in any step: the weights are read once for all.
_LITTLE = 64
_WITH_PROMPTS = (None, "FULL", "FULL_AND_PIECEWISE")


@dataclass(frozen=True, slots=True, order=True)
class GraphShape:
    """The size of a captured step. There are fewer requests than tokens, or each has one token."""

    num_tokens: int
    num_rows: int
    max_seq_len: int

    @property
    def is_decode(self) -> bool:
        """Whether each request has one token; kernels know such steps by their shape."""
        return self.num_tokens == self.num_rows

    def holds(self, num_tokens: int, num_rows: int, seq_len: int) -> bool:
        """Whether a step of so many tokens and requests, the longest of `seq_len`, may use it."""
        fits = num_tokens <= self.num_tokens <= 2 * num_tokens + _LITTLE
        return fits and num_rows <= self.num_rows and seq_len <= self.max_seq_len


def longer_shapes(config: VllmConfig) -> tuple[GraphShape, ...]:
    """The captured steps with more tokens than requests, ascending.

    With drafts: a request's most drafts for some of the captured numbers of requests. With
    cudagraph_mode FULL or FULL_AND_PIECEWISE, or none: any steps of few tokens and short contexts.
    """
    sizes, most = config.capture_sizes, min(_MOST_TOKENS, config.scheduler.max_num_batched_tokens)
    if not sizes or config.attention.backend == "FLASH_ATTN" or config.facts.pooling is not None:
        return ()
    max_len, compilation = config.model.max_model_len, config.compilation
    shapes = set[GraphShape]()
    if config.speculative.num_drafts:
        count = 1 + config.speculative.num_drafts
        shapes.update(GraphShape(n * count, n, max_len) for n in _halving(sizes, most // count))
    if compilation.cudagraph_mode in _WITH_PROMPTS:
        given = compilation.cudagraph_capture_sizes, compilation.max_cudagraph_capture_size
        is_given = given != (None, None)
        lengths = _halving(sizes, most) if is_given else (*_PROMPT_TOKENS, most)
        rows, context = config.scheduler.max_num_seqs, min(max_len, _MOST_CONTEXT)
        shapes.update(GraphShape(n, min(rows, n - 1), context) for n in lengths if 1 < n <= most)
    return tuple(sorted(shapes))


def _halving(sizes: Iterable[int], most: int) -> Iterator[int]:
    """The largest of `sizes` up to `most`, then each time the largest up to a half of the last."""
    for size in sorted(sizes, reverse=True):
        if size <= most:
            yield size
            most = size // 2
