"""Which tokens may be drawn: min_p, top_k and top_p as one threshold a row.

Works on weights w = exp(logit - largest logit), so that the largest weight is 1 and min_p is
a threshold as it stands. A filter keeps every token whose weight reaches the threshold: ties
with the last token kept are kept too, hence the result never depends on a sort's order.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from vllm_lite.sample.blocks import descending, largest, running_block_sums, zero_below

# Candidates looked at before a row is sorted whole for its top_p.
_TOP_P_CANDIDATES = 64


@dataclass(frozen=True, slots=True)
class Filters:
    """The filters of R rows. A filter that no row uses is None; `top_k` 0 and `top_p` 1 are off."""

    min_p: Tensor | None  # [R] float32
    top_k: Tensor | None  # [R] int64
    top_p: Tensor | None  # [R] float32
    max_top_k: int = 0

    def apply(self, weights: Tensor) -> None:
        """Set the weights [R, V] of tokens that may not be drawn to zero, in place."""
        least: Tensor | None = None
        if self.min_p is not None:
            least = self.min_p[:, None]
        if self.top_k is not None:
            kth = _top_k_threshold(weights, self.top_k, self.max_top_k)
            least = kth if least is None else torch.maximum(least, kth)
        if least is not None:
            zero_below(weights, least)
        if self.top_p is not None:
            zero_below(weights, _top_p_threshold(weights, self.top_p))


def _top_k_threshold(weights: Tensor, top_k: Tensor, max_top_k: int) -> Tensor:
    size = weights.shape[-1]
    count = min(max_top_k, size)
    ordered = descending(weights) if count * 16 > size else largest(weights, count)[0]
    last = (top_k.clamp(max=size) - 1).clamp(min=0)
    kth = ordered.gather(1, last.clamp(max=ordered.shape[1] - 1)[:, None])
    return torch.where(top_k[:, None] > 0, kth, 0.0)


def _top_p_threshold(weights: Tensor, top_p: Tensor) -> Tensor:
    """The weight at which the mass of the likeliest tokens reaches top_p; [R, 1]."""
    wanted = top_p.double()[:, None] * running_block_sums(weights)[:, -1:]
    is_off = top_p >= 1.0
    ordered = largest(weights, min(_TOP_P_CANDIDATES, weights.shape[-1]))[0]
    threshold, reached = _crossing(ordered, wanted)
    missing = ~(reached | is_off)
    if bool(missing.any()):
        rows = missing.nonzero()[:, 0]
        found, is_reached = _crossing(descending(weights[rows]), wanted[rows])
        # Rounding may leave the whole row short of its mass; then nothing is cut.
        threshold[rows] = torch.where(is_reached[:, None], found, 0.0)
    return threshold.masked_fill_(is_off[:, None], 0.0)


def _crossing(ordered: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
    """Where the running sum of descending `ordered` [R, C] reaches `wanted` [R, 1].

    The weight there [R, 1], and whether it was reached [R].
    """
    cumulative = ordered.cumsum(-1, dtype=torch.float64)
    index = torch.searchsorted(cumulative, wanted)
    reached = index[:, 0] < ordered.shape[1]
    return ordered.gather(1, index.clamp(max=ordered.shape[1] - 1)), reached
