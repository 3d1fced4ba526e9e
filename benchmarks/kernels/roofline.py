"""The least time of a decoder's steps: bytes over the bandwidth, operations over the arithmetic.

A step's parts follow one another, and each takes the longer of the two: weights that all tokens
use, experts (those that tokens are expected to choose), and what sequences keep with its attention.
"""

from __future__ import annotations

from dataclasses import dataclass

from kernels.limits import Arithmetic, Limits


@dataclass(frozen=True, slots=True)
class Load:
    """The least work of some steps of a batch."""

    # Times that the weights are read.
    steps: int
    # Tokens that go through the layers, and those of them whose logits are wanted.
    tokens: int
    logits: int
    # Queries times the keys that each of them sees.
    pairs: int
    # Tokens whose keys and values are read from the cache.
    cached: int


def prefill(length: int) -> Load:
    """One prompt in one step."""
    return Load(1, length, 1, length * (length + 1) // 2, length)


def decode(num_seqs: int, context: int) -> Load:
    """One step of sequences, each after so many tokens."""
    return Load(1, num_seqs, num_seqs, num_seqs * context, num_seqs * context)


def generate(num_seqs: int, prompt: int, output: int) -> Load:
    """Prompts and their outputs, all sequences together; a prompt gives the first token."""
    length = prompt + output - 1
    decoded = length * (length + 1) // 2 - prompt * (prompt + 1) // 2
    pairs, cached = length * (length + 1) // 2, prompt + decoded
    return Load(output, num_seqs * length, num_seqs * output, num_seqs * pairs, num_seqs * cached)


@dataclass(frozen=True, slots=True)
class Decoder:
    """The parameters of a decoder, and what a token of it keeps and computes."""

    # Parameters of the layers that all tokens use, those of the head, and those of experts.
    layers: int
    head: int
    experts: int = 0
    num_experts: int = 1
    chosen: int = 1
    bytes_per_weight: float = 2.0
    # Of the products; attention computes in bfloat16.
    arithmetic: Arithmetic = "bfloat16"
    # A token's keys and values, of all layers.
    cache_bytes: int = 0
    # Read and written in a step for a token, whatever its context.
    state_bytes: int = 0
    # Of a query and a key, for all layers and heads.
    pair_operations: int = 0

    def seconds(self, load: Load, limits: Limits) -> float:
        """How long a load takes at least."""
        share = self.chosen / self.num_experts
        # Of the experts in a step, where tokens choose evenly.
        read = 1 - (1 - share) ** (load.tokens / load.steps)
        used = self.layers * load.tokens + self.head * load.logits
        weights = limits.seconds(
            self.bytes_per_weight * load.steps * (self.layers + self.head),
            2 * used,
            self.arithmetic,
        )
        experts = limits.seconds(
            self.bytes_per_weight * load.steps * self.experts * read,
            2 * load.tokens * self.experts * share,
            self.arithmetic,
        )
        kept = limits.seconds(
            self.cache_bytes * load.cached + self.state_bytes * load.tokens,
            self.pair_operations * load.pairs,
            "bfloat16",
        )
        return weights + experts + kept
