"""Operations of encoders, in plain torch: requests are whole and nothing is cached."""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from torch import Tensor

from vllm_lite.kernels.reference.norm import layer_norm


def encoder_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    query_start_loc: Tensor,
    scale: float,
    sliding_window: int = 0,
    logits_soft_cap: float = 0.0,
    *,
    alibi_slopes: Tensor | None = None,
    distance_terms: Tensor | None = None,
) -> Tensor:
    """Attention in both directions of query [T, H, D] to key [T, K, D] and value [T, K, Dv], of any
    token and head strides; returns [T, H, Dv].

    Request r's tokens are query_start_loc[r] : query_start_loc[r + 1] ([R + 1] int32); token i sees
    token j of its own request, with a window w if |i - j| <= w. A soft cap c maps scores to
    c * tanh(score / c); alibi_slopes [H] float32 subtract slope * |i - j| from a score;
    distance_terms [H, 2L - 1] float32, for requests of up to L tokens, add the number at
    L - 1 + j - i. Tokens of no request become 0.
    """
    num_heads = query.shape[1]
    output = query.new_zeros((*query.shape[:2], value.shape[2]))
    bounds = query_start_loc.tolist()
    for start, end in pairwise(bounds):
        keys, values = (
            rows[start:end].float().repeat_interleave(num_heads // rows.shape[1], dim=1)
            for rows in (key, value)
        )
        scores = torch.einsum("ihd,jhd->hij", query[start:end].float(), keys) * scale
        if logits_soft_cap > 0:
            scores = logits_soft_cap * torch.tanh(scores / logits_soft_cap)
        token = torch.arange(end - start, device=query.device)
        distance = (token.unsqueeze(1) - token).abs()
        if alibi_slopes is not None:
            scores = scores - alibi_slopes[:, None, None] * distance
        if distance_terms is not None:
            middle = distance_terms.shape[1] // 2
            scores = scores + distance_terms[:, middle + token - token.unsqueeze(1)]
        if sliding_window > 0:
            scores = scores.masked_fill(distance > sliding_window, -math.inf)
        weights = torch.softmax(scores, dim=-1)
        output[start:end] = torch.einsum("hij,jhd->ihd", weights, values).to(query.dtype)
    return output


def encoder_embedding(
    input_ids: Tensor,
    positions: Tensor,
    words: Tensor,
    places: Tensor | None = None,
    types: Tensor | None = None,
    norm_weight: Tensor | None = None,
    norm_bias: Tensor | None = None,
    eps: float = 1e-12,
) -> Tensor:
    """Sum of the rows of words [V, N], places [P, N] and types [Y, N] of each token, [T, N].

    An id of input_ids [T] int64 is word + type * V; positions [T] int64 are rows of places. Summed
    in float32 and, with norm_weight [N] and norm_bias [N], layer-normalised before the one
    rounding. A row that a table lacks raises IndexError.
    """
    look_up = torch.nn.functional.embedding
    total = look_up(input_ids if types is None else input_ids % len(words), words).float()
    if types is not None:
        total += look_up(input_ids // len(words), types).float()
    if places is not None:
        total += look_up(positions, places).float()
    if norm_weight is not None:
        total = layer_norm(total, norm_weight, norm_bias, eps)
    return total.to(words.dtype)


def segment_sum(x: Tensor, query_start_loc: Tensor, sums: Tensor) -> Tensor:
    """Add rows query_start_loc[r] : query_start_loc[r + 1] of x [T, N] to sums[r] ([R, N] float32),
    one after the other, in place; returns sums.

    So a segment that is added in several parts has the bits of one that is added whole.
    """
    bounds = query_start_loc.tolist()
    for total, (start, end) in zip(sums, pairwise(bounds), strict=True):
        for row in x[start:end]:
            total += row.float()
    return sums
