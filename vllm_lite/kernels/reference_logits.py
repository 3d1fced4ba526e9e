"""What is done to logits before a token is chosen, in plain torch; part of `reference`.

State lives beside the logits, by slot: what a request was given and what it said. Shapes: R rows,
V tokens of the vocabulary, S slots.
"""

from __future__ import annotations

import torch
from torch import Tensor

# Counts of a token stop here: no penalty tells more of them apart.
MOST_COUNTED = 2**15 - 1
_GAMMA = 0x9E3779B97F4A7C15 - 2**64
_MULTIPLIERS = (0xBF58476D1CE4E5B9 - 2**64, 0x94D049BB133111EB - 2**64)

__all__ = ["add_to_logits", "count_tokens", "counter_uniforms", "penalize_logits"]


def add_to_logits(logits: Tensor, rows: Tensor, token_ids: Tensor, values: Tensor) -> None:
    """Add values [N] float32 to logits [R, V] float32 at (rows [N], token_ids [N]), both int64.

    No pair comes twice; -inf bans a token. Pairs of a negative row are left out.
    """
    kept = rows >= 0
    logits[rows[kept], token_ids[kept]] += values[kept]


def count_tokens(counts: Tensor, slots: Tensor, token_ids: Tensor) -> None:
    """Count token_ids [R] int64 in counts [S, V] int16 of slots [R] int64, all different.

    A negative token is not counted, nor is one beyond MOST_COUNTED times.
    """
    kept = token_ids >= 0
    slots, token_ids = slots[kept], token_ids[kept]
    counts[slots, token_ids] = (counts[slots, token_ids].int() + 1).clamp_(max=MOST_COUNTED).short()


def penalize_logits(
    logits: Tensor,
    slots: Tensor,
    prompted: Tensor,
    counts: Tensor,
    repetition: Tensor,
    frequency: Tensor,
    presence: Tensor,
) -> None:
    """Penalise logits [R, V] float32 in place by what the rows' slots [R] int64 have seen.

    prompted [S, W] int32 has a bit for each token of a prompt, least significant first; counts
    [S, V] int16 how often each was generated. The penalties are [R] float32; 1, 0 and 0 are none.
    A seen token's logit is divided by repetition where positive, else multiplied; then it loses
    frequency for each time it was generated, and presence if it was.
    """
    places = torch.arange(logits.shape[1], device=logits.device)
    times = counts[slots].float()
    in_prompt = ((prompted[slots][:, places >> 5] >> (places & 31)) & 1) == 1
    factor = repetition[:, None]
    bent = torch.where(logits > 0, logits / factor, logits * factor)
    logits.copy_(torch.where(in_prompt | (times > 0), bent, logits))
    logits.sub_(frequency[:, None] * times + presence[:, None] * (times > 0))


def counter_uniforms(keys: Tensor, positions: Tensor) -> Tensor:
    """A number in [0, 1) for each (key, position), [R] float64 of [R] int64 each.

    SplitMix64 entered at a position (Steele, Lea, Flood 2014); keys are unsigned 64-bit numbers
    in int64. The numbers are those that a host computes.
    """
    x = keys + (positions + 1) * _GAMMA
    for shift, multiplier in zip((30, 27), _MULTIPLIERS, strict=True):
        x = (x ^ _shifted(x, shift)) * multiplier
    x = x ^ _shifted(x, 31)
    return _shifted(x, 11).double() * 2.0**-53


def _shifted(x: Tensor, by: int) -> Tensor:
    """int64 shifted right as if it had no sign."""
    shifted: Tensor = (x >> by) & (2 ** (64 - by) - 1)
    return shifted
