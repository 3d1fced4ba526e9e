"""Sampling of tokens and their log-probabilities, in plain torch.

Sampling works on weights w = exp((logit - largest logit) / temperature), so that the largest
weight is 1 and min_p is itself a threshold. A filter keeps every token whose weight reaches
its threshold, ties with the last one included, so no result depends on a sort's order.
"""

from __future__ import annotations

import torch
from torch import Tensor

# Smaller weights count as zero: as floats they would be subnormal, or nearly.
_LEAST_WEIGHT = 2e-38


def apply_token_mask(logits: Tensor, rows: Tensor, bits: Tensor) -> None:
    """Set logits [R, V] float32 to -inf where a mask has a 0, in place.

    bits [M, W] int32, 32 * W >= V, least significant bit first, are the masks of rows [M] int64;
    the other rows stay as they are. A row beyond R raises IndexError.
    """
    places = torch.arange(logits.shape[1], device=logits.device)
    allowed = (bits[:, places >> 5] >> (places & 31)) & 1
    logits[rows] = logits[rows].masked_fill_(allowed == 0, float("-inf"))


def penalize_tokens(
    logits: Tensor, rows: Tensor, starts: Tensor, token_ids: Tensor, times: Tensor, factors: Tensor
) -> None:
    """Lower the logits [R, V] float32 of tokens that a request has, in place.

    List i of M, of row rows[i] (int64), is token_ids[starts[i] : starts[i + 1]] (int64, distinct),
    which were generated `times` (float32, 0 for those of the prompt alone). factors [M, 3] float32:
    repetition, by which positive logits are divided and others multiplied; frequency, taken off for
    each time; presence, taken off once. A row or an id that is not there raises IndexError.
    """
    # With a size that is known, no device waits for the lengths.
    lengths, size = starts.diff(), len(token_ids)
    factors = factors.repeat_interleave(lengths, 0, output_size=size)
    repetition, frequency, presence = factors.unbind(1)
    rows = rows.repeat_interleave(lengths, output_size=size)
    values = logits[rows, token_ids]
    values = torch.where(values > 0, values / repetition, values * repetition)
    values -= frequency * times + presence * (times > 0)
    logits[rows, token_ids] = values


def greedy_tokens(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Find the first token with the largest logit in each row of logits [R, V] float32.

    Returns tokens [R] int64 and the largest logits [R] float32. If a largest logit is not finite,
    the row admits no token and its id is arbitrary, below V.
    """
    largest = logits.amax(-1)
    tokens = (logits == largest[:, None]).int().argmax(-1)
    return tokens, largest


def sample_tokens(
    logits: Tensor,
    inverse_temperature: Tensor,
    min_p: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    chances: Tensor,
) -> tuple[Tensor, Tensor]:
    """Sample a token for each row of logits [R, V] float32; returns as `greedy_tokens`.

    All other arguments are [R]. inverse_temperature, min_p, top_p are float32, top_k is int64,
    chances are float64 in [0, 1). A row whose inverse_temperature is 0 is greedy. min_p 0, top_k 0
    (or V and more) and top_p 1 are off; they apply in this order. Sampling inverts the cumulative
    distribution in vocabulary order. A row's token depends on that row alone.
    """
    tokens, largest = greedy_tokens(logits)
    rows = (largest.isfinite() & (inverse_temperature != 0)).nonzero()[:, 0]
    if len(rows):
        weights = token_weights(logits[rows], inverse_temperature[rows])
        filter_weights(weights, min_p[rows], top_k[rows], top_p[rows])
        tokens[rows] = _draw(weights, chances[rows])
    return tokens, largest


def token_logprobs(
    logits: Tensor, rows: Tensor, token_ids: Tensor, num_top: int, is_normalized: bool = True
) -> tuple[Tensor, Tensor, Tensor]:
    """Report log-probabilities of M entries: token token_ids[m] of row rows[m] of logits [R, V].

    Returns values [M, 1 + num_top] float32, ids [M, 1 + num_top] and ranks [M], both int64: the
    entry's own token, then the num_top <= V likeliest of its row, ties in order of ids.
    Values are log-probabilities, or logits unless normalized. A rank is the
    number of tokens at least as likely as the entry's own. Rows or ids out of range: IndexError.
    """
    wanted = logits[rows]
    own = wanted.gather(1, token_ids[:, None])
    ranks = (wanted >= own).sum(-1)
    top = wanted.sort(dim=-1, descending=True, stable=True).indices[:, :num_top]
    ids = torch.cat([token_ids[:, None], top], 1)
    values = wanted.log_softmax(-1) if is_normalized else wanted
    return values.gather(1, ids), ids, ranks


def token_weights(logits: Tensor, inverse_temperature: Tensor) -> Tensor:
    """Weights [N, V] of rows with a finite largest logit; `inverse_temperature` is [N]."""
    exponents = (logits - logits.amax(-1, keepdim=True)) * inverse_temperature[:, None]
    weights = exponents.exp()
    return weights.masked_fill_(weights <= _LEAST_WEIGHT, 0.0)


def filter_weights(weights: Tensor, min_p: Tensor, top_k: Tensor, top_p: Tensor) -> None:
    """Set weights [N, V] of filtered tokens to zero, in place; the parameters are [N]."""
    ordered = weights.sort(-1, descending=True).values
    last = (top_k - 1).clamp(0, weights.shape[1] - 1)
    kth = torch.where(top_k > 0, ordered.gather(1, last[:, None])[:, 0], 0.0)
    weights.masked_fill_(weights < torch.maximum(min_p, kth)[:, None], 0.0)
    # The weight at which the likeliest tokens' cumulative mass reaches top_p.
    cumulative = weights.sort(-1, descending=True).values.cumsum(-1, dtype=torch.float64)
    wanted = top_p.double()[:, None] * cumulative[:, -1:]
    crossing = torch.searchsorted(cumulative, wanted).clamp_(max=weights.shape[1] - 1)
    is_off = top_p[:, None] >= 1.0
    weights.masked_fill_((weights < ordered.gather(1, crossing)) & ~is_off, 0.0)


def _draw(weights: Tensor, chances: Tensor) -> Tensor:
    """Sample an index for each row [N] in proportion to weights [N, V] with positive sums."""
    running = weights.cumsum(-1, dtype=torch.float64)
    total = running[:, -1:].contiguous()
    index = torch.searchsorted(running, chances[:, None] * total, right=True)
    # If rounding keeps the sum from passing the target, take the last token with weight.
    return torch.minimum(index, torch.searchsorted(running, total))[:, 0]
