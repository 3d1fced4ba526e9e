"""Sampling and log-probabilities by Triton: one program a row, or a reported entry.

A filter's threshold is searched in the bits of weights, two bits a pass, instead of sorting:
positive floats sort like their bits. Masses are integers in units of 2**-44 of the largest
weight, so sums do not depend on their order, and a token depends on its row alone. They fit 63
bits for vocabularies below 2**19.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from vllm_lite.kernels.reference import sampling as reference_sampling

_MASK_BLOCK = 1024
_LEAST_WEIGHT = tl.constexpr(2e-38)
_UNIT = tl.constexpr(2.0**44)
# Searching the likeliest tokens needs many registers, so it uses half the threads.
_BLOCK = 4096
_NUM_WARPS = 16
# Above this many, a row is sorted instead.
_MOST_TOP = 64


@triton.jit
def token_mask_kernel(
    logits_ptr, rows_ptr, bits_ptr, logits_stride, bits_stride, size, BLOCK: tl.constexpr
):
    place = tl.program_id(0).to(tl.int64)
    row = tl.load(rows_ptr + place).to(tl.int64)
    tokens = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_token = tokens < size
    words = tl.load(bits_ptr + place * bits_stride + tokens // 32, mask=is_token, other=0)
    is_banned = ((words >> (tokens % 32)) & 1) == 0
    tl.store(logits_ptr + row * logits_stride + tokens, float("-inf"), mask=is_token & is_banned)


def apply_token_mask(logits: Tensor, rows: Tensor, bits: Tensor) -> None:
    size = logits.shape[1]
    grid = (len(rows), triton.cdiv(size, _MASK_BLOCK))
    token_mask_kernel[grid](
        logits, rows, bits, logits.stride(0), bits.stride(0), size, BLOCK=_MASK_BLOCK
    )


@triton.jit
def _largest(logits_ptr, size, BLOCK: tl.constexpr):
    """Return (index of the row's first largest logit, the logit; NaN if the row has one)."""
    lanes = tl.arange(0, BLOCK)
    best = tl.full([BLOCK], float("-inf"), tl.float32)
    places = tl.zeros([BLOCK], tl.int32)
    is_bad = tl.zeros([BLOCK], tl.int32)
    for first in range(0, size, BLOCK):
        tokens = first + lanes
        logits = tl.load(logits_ptr + tokens, mask=tokens < size, other=float("-inf"))
        is_bad |= (logits != logits).to(tl.int32)
        places = tl.where(logits > best, tokens, places)
        best = tl.maximum(best, logits)
    largest = tl.max(best, axis=0)
    place = tl.min(tl.where(best == largest, places, size - 1), axis=0)
    return place, tl.where(tl.max(is_bad, axis=0) > 0, float("nan"), largest)


@triton.jit
def _mass(weights):
    return (weights * _UNIT).to(tl.int64)


@triton.jit
def _total(weights_ptr, size, least, BLOCK: tl.constexpr):
    """The mass of the row's weights with bits of at least `least`."""
    lanes = tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.int64)
    for first in range(0, size, BLOCK):
        weights = tl.load(weights_ptr + first + lanes, mask=first + lanes < size, other=0.0)
        is_kept = weights.to(tl.int32, bitcast=True) >= least
        total += tl.where(is_kept, _mass(weights), 0)
    return tl.sum(total, axis=0)


@triton.jit
def _highest_reaching(weights_ptr, size, least, wanted, BY_MASS: tl.constexpr, BLOCK: tl.constexpr):
    """The highest threshold, of at least `least`, above which weights reach `wanted`.

    `wanted` is a mass or a count.
    """
    lanes = tl.arange(0, BLOCK)
    found = least * 0
    for step in range(15):
        shift = 28 - 2 * step
        one, two, three = found + (1 << shift), found + (2 << shift), found + (3 << shift)
        from_one = tl.zeros([BLOCK], tl.int64)
        from_two = tl.zeros([BLOCK], tl.int64)
        from_three = tl.zeros([BLOCK], tl.int64)
        for first in range(0, size, BLOCK):
            is_token = first + lanes < size
            weights = tl.load(weights_ptr + first + lanes, mask=is_token, other=0.0)
            bits = weights.to(tl.int32, bitcast=True)
            worth = _mass(weights) if BY_MASS else is_token.to(tl.int64)
            worth = tl.where(bits >= least, worth, 0)
            from_one += tl.where(bits >= one, worth, 0)
            from_two += tl.where(bits >= two, worth, 0)
            from_three += tl.where(bits >= three, worth, 0)
        found = tl.where(tl.sum(from_one, axis=0) >= wanted, one, found)
        found = tl.where(tl.sum(from_two, axis=0) >= wanted, two, found)
        found = tl.where(tl.sum(from_three, axis=0) >= wanted, three, found)
    return found


@triton.jit
def _token_at(weights_ptr, size, least, target, BLOCK: tl.constexpr):
    """The first token at which the cumulative mass of weights from `least` on exceeds `target`."""
    lanes = tl.arange(0, BLOCK)
    before = target * 0
    token = size * 0
    for first in range(0, size, BLOCK):
        weights = tl.load(weights_ptr + first + lanes, mask=first + lanes < size, other=0.0)
        is_kept = weights.to(tl.int32, bitcast=True) >= least
        masses = tl.where(is_kept, _mass(weights), 0)
        block = tl.sum(masses, axis=0)
        if (before <= target) & (before + block > target):
            running = before + tl.cumsum(masses, axis=0)
            token = first + tl.sum((running <= target).to(tl.int32), axis=0)
        before += block
    return token


@triton.jit
def greedy_kernel(tokens_ptr, largest_ptr, logits_ptr, logits_stride, size, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    token, largest = _largest(logits_ptr + row * logits_stride, size, BLOCK)
    tl.store(tokens_ptr + row, token)
    tl.store(largest_ptr + row, largest)


@triton.jit
def draw_kernel(
    tokens_ptr,
    largest_ptr,
    weights_ptr,
    logits_ptr,
    inverse_temperature_ptr,
    min_p_ptr,
    top_k_ptr,
    top_p_ptr,
    chances_ptr,
    logits_stride,
    size,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    logits_ptr += row * logits_stride
    weights_ptr += row * size
    token, largest = _largest(logits_ptr, size, BLOCK)
    tl.store(largest_ptr + row, largest)
    inverse_temperature = tl.load(inverse_temperature_ptr + row)
    is_finite = tl.abs(largest) < float("inf")
    if (inverse_temperature == 0.0) | (is_finite == 0):
        tl.store(tokens_ptr + row, token)
        return

    min_p = tl.load(min_p_ptr + row)
    lanes = tl.arange(0, BLOCK)
    for first in range(0, size, BLOCK):
        is_token = first + lanes < size
        logits = tl.load(logits_ptr + first + lanes, mask=is_token, other=float("-inf"))
        weights = tl.exp((logits - largest) * inverse_temperature)
        weights = tl.where((weights > _LEAST_WEIGHT) & (weights >= min_p), weights, 0.0)
        tl.store(weights_ptr + first + lanes, weights, mask=is_token)
    tl.debug_barrier()

    top_k = tl.load(top_k_ptr + row)
    least = size * 0
    if (top_k > 0) & (top_k < size):
        least = _highest_reaching(weights_ptr, size, least, top_k, False, BLOCK)
    total = _total(weights_ptr, size, least, BLOCK)
    top_p = tl.load(top_p_ptr + row)
    if top_p < 1.0:
        share = top_p.to(tl.float64) * total.to(tl.float64)
        wanted = share.to(tl.int64)
        wanted += (wanted.to(tl.float64) < share).to(tl.int64)
        likely = _highest_reaching(weights_ptr, size, least, wanted, True, BLOCK)
        least = tl.maximum(least, likely)
        total = _total(weights_ptr, size, least, BLOCK)
    target = (tl.load(chances_ptr + row) * total.to(tl.float64)).to(tl.int64)
    target = tl.minimum(target, total - 1)
    tl.store(tokens_ptr + row, _token_at(weights_ptr, size, least, target, BLOCK))


@triton.jit(do_not_specialize=["num_top"])
def token_logprobs_kernel(
    values_ptr,
    ids_ptr,
    ranks_ptr,
    logits_ptr,
    rows_ptr,
    tokens_ptr,
    logits_stride,
    size,
    num_top,
    IS_NORMALIZED: tl.constexpr,
    TOP: tl.constexpr,
    BLOCK: tl.constexpr,
):
    entry = tl.program_id(0).to(tl.int64)
    logits_ptr += tl.load(rows_ptr + entry) * logits_stride
    token = tl.load(tokens_ptr + entry)
    own = tl.load(logits_ptr + token)
    lanes = tl.arange(0, BLOCK)
    largest = tl.full([BLOCK], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    rank = tl.zeros([BLOCK], tl.int32)
    # Logit and index as one integer: larger logits are larger, and ties go to the first.
    best = tl.full([TOP], -(2**63), tl.int64)
    for first in range(0, size, BLOCK):
        tokens = first + lanes
        is_token = tokens < size
        logits = tl.load(logits_ptr + tokens, mask=is_token, other=float("-inf"))
        rank += ((logits >= own) & is_token).to(tl.int32)
        new_largest = tl.maximum(largest, logits)
        shift = tl.where(new_largest == float("-inf"), 0.0, new_largest)
        total = total * tl.exp(largest - shift) + tl.exp(logits - shift)
        largest = new_largest
        if TOP > 1:
            bits = logits.to(tl.int32, bitcast=True)
            order = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.int64)
            keys = tl.where(is_token, (order << 32) | (0x7FFFFFFF - tokens), -(2**63))
            if tl.max(keys, axis=0) > tl.min(best, axis=0):
                likeliest = tl.topk(keys, TOP)
                best = tl.topk(tl.reshape(tl.join(best, likeliest), [2 * TOP]), TOP)
    shift = tl.max(largest, axis=0)
    normalizer = 0.0
    if IS_NORMALIZED:
        normalizer = shift + tl.log(tl.sum(total * tl.exp(largest - shift), axis=0))
    width = num_top + 1
    tl.store(values_ptr + entry * width, own - normalizer)
    tl.store(ids_ptr + entry * width, token)
    tl.store(ranks_ptr + entry, tl.sum(rank, axis=0).to(tl.int64))
    if TOP > 1:
        places = tl.arange(0, TOP)
        ids = 0x7FFFFFFF - (best & 0xFFFFFFFF)
        order = (best >> 32).to(tl.int32)
        values = (order ^ ((order >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)
        is_top = places < num_top
        tl.store(values_ptr + entry * width + 1 + places, values - normalizer, mask=is_top)
        tl.store(ids_ptr + entry * width + 1 + places, ids, mask=is_top)


def greedy_tokens(logits: Tensor) -> tuple[Tensor, Tensor]:
    num_rows, size = logits.shape
    tokens = logits.new_empty(num_rows, dtype=torch.int64)
    largest = logits.new_empty(num_rows)
    greedy_kernel[(num_rows,)](
        tokens,
        largest,
        logits,
        logits.stride(0),
        size,
        BLOCK=_block(size, _BLOCK),
        num_warps=_NUM_WARPS,
    )
    return tokens, largest


def sample_tokens(
    logits: Tensor,
    inverse_temperature: Tensor,
    min_p: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    chances: Tensor,
) -> tuple[Tensor, Tensor]:
    num_rows, size = logits.shape
    tokens = logits.new_empty(num_rows, dtype=torch.int64)
    largest = logits.new_empty(num_rows)
    weights = logits.new_empty((num_rows, size))
    draw_kernel[(num_rows,)](
        tokens,
        largest,
        weights,
        logits,
        inverse_temperature,
        min_p,
        top_k,
        top_p,
        chances,
        logits.stride(0),
        size,
        BLOCK=_block(size, _BLOCK),
        num_warps=_NUM_WARPS,
    )
    return tokens, largest


def token_logprobs(
    logits: Tensor, rows: Tensor, token_ids: Tensor, num_top: int, is_normalized: bool = True
) -> tuple[Tensor, Tensor, Tensor]:
    if num_top > _MOST_TOP:
        return reference_sampling.token_logprobs(logits, rows, token_ids, num_top, is_normalized)
    num_entries, size = len(rows), logits.shape[1]
    values = logits.new_empty((num_entries, 1 + num_top))
    ids = token_ids.new_empty((num_entries, 1 + num_top))
    ranks = token_ids.new_empty(num_entries)
    top = max(2, triton.next_power_of_2(num_top)) if num_top else 1
    token_logprobs_kernel[(num_entries,)](
        values,
        ids,
        ranks,
        logits,
        rows,
        token_ids,
        logits.stride(0),
        size,
        num_top,
        IS_NORMALIZED=is_normalized,
        TOP=top,
        BLOCK=max(_block(size, _BLOCK // 2), top),
        num_warps=_NUM_WARPS // 2,
    )
    return values, ids, ranks


def _block(size: int, most: int) -> int:
    return min(most, int(triton.next_power_of_2(size)))
