"""Sampling and log-probabilities by Triton.

A program for each part of a row finds its largest logit, then weights; one a row makes its token of
what the parts found. Filters' thresholds are searched by that one; a reported entry is one's too.

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

from vllm_lite.kernels.gpu.sizes import cdiv, next_power_of_2
from vllm_lite.kernels.gpu.triton.chained import chained, wait_for_inputs
from vllm_lite.kernels.reference import sampling as reference_sampling

_LEAST_WEIGHT = tl.constexpr(2e-38)
_UNIT = tl.constexpr(2.0**44)
_BLOCK = 2048
_NUM_WARPS = 8
# So many likeliest tokens are found, or none: each number would be another kernel to compile. Rows
# that want more are sorted.
_TOP = 32


@triton.jit
def _mass(weights):
    return (weights * _UNIT).to(tl.int64)


@triton.jit
def _kept_masses(weights_ptr, most_ptr, size, least, PARTS: tl.constexpr, PART: tl.constexpr):
    """The mass of each part's weights with bits of at least `least`, [PARTS]."""
    parts = tl.arange(0, PARTS)
    masses = tl.zeros([PARTS], tl.int64)
    for part in range(tl.cdiv(size, PART)):
        if tl.load(most_ptr + part).to(tl.int32, bitcast=True) >= least:
            tokens = part * PART + tl.arange(0, PART)
            weights = tl.load(weights_ptr + tokens, mask=tokens < size, other=0.0)
            is_kept = weights.to(tl.int32, bitcast=True) >= least
            mass = tl.sum(tl.where(is_kept, _mass(weights), 0), axis=0)
            masses = tl.where(parts == part, mass, masses)
    return masses


@triton.jit
def _highest_reaching(
    weights_ptr, most_ptr, size, least, wanted, BY_MASS: tl.constexpr, PART: tl.constexpr
):
    """The highest threshold, of at least `least`, above which weights reach `wanted`.

    `wanted` is a mass or a count. Parts whose largest weight is below all that is asked are not
    read: all but a few, once the thresholds in question are close.
    """
    found = least * 0
    for step in range(15):
        shift = 28 - 2 * step
        one, two, three = found + (1 << shift), found + (2 << shift), found + (3 << shift)
        from_one = tl.zeros([PART], tl.int64)
        from_two = tl.zeros([PART], tl.int64)
        from_three = tl.zeros([PART], tl.int64)
        for part in range(tl.cdiv(size, PART)):
            if tl.load(most_ptr + part).to(tl.int32, bitcast=True) >= one:
                tokens = part * PART + tl.arange(0, PART)
                is_token = tokens < size
                weights = tl.load(weights_ptr + tokens, mask=is_token, other=0.0)
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
def _token_at(weights_ptr, size, least, masses, target, PARTS: tl.constexpr, PART: tl.constexpr):
    """The first token at which the cumulative mass of weights from `least` on exceeds `target`.

    `masses` [PARTS] are those of the parts.
    """
    parts = tl.arange(0, PARTS)
    part = tl.sum((tl.cumsum(masses, axis=0) <= target).to(tl.int32), axis=0)
    before = tl.sum(tl.where(parts < part, masses, 0), axis=0)
    tokens = part * PART + tl.arange(0, PART)
    weights = tl.load(weights_ptr + tokens, mask=tokens < size, other=0.0)
    is_kept = weights.to(tl.int32, bitcast=True) >= least
    running = before + tl.cumsum(tl.where(is_kept, _mass(weights), 0), axis=0)
    return part * PART + tl.sum((running <= target).to(tl.int32), axis=0)


@triton.jit
def _first_largest(logits, tokens, last):
    """Return (the first of `tokens` with the largest logit, the logit; NaN if there is one).

    The token is `last` where all are NaN.
    """
    is_bad = logits != logits
    largest = tl.max(tl.where(is_bad, float("-inf"), logits), axis=0)
    token = tl.min(tl.where(logits == largest, tokens, last), axis=0)
    has_bad = tl.max(is_bad.to(tl.int32), axis=0) > 0
    return token, tl.where(has_bad, float("nan"), largest)


@triton.jit
def part_largest_kernel(
    part_largest_ptr,
    part_tokens_ptr,
    logits_ptr,
    logits_stride,
    size,
    PART: tl.constexpr,
    IS_CHAINED: tl.constexpr,
):
    wait_for_inputs(IS_CHAINED)
    row = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    tokens = part * PART + tl.arange(0, PART)
    logits_ptr += row * logits_stride
    logits = tl.load(logits_ptr + tokens, mask=tokens < size, other=float("-inf"))
    token, largest = _first_largest(logits, tokens, size - 1)
    place = row * tl.num_programs(1) + part
    tl.store(part_largest_ptr + place, largest)
    tl.store(part_tokens_ptr + place, token)


@triton.jit
def _largest(part_largest_ptr, part_tokens_ptr, row, size, PARTS: tl.constexpr, PART: tl.constexpr):
    """`_first_largest` of a row, of those of its parts."""
    parts = tl.arange(0, PARTS)
    num_parts = tl.cdiv(size, PART)
    is_part = parts < num_parts
    place = row * num_parts + parts
    largest = tl.load(part_largest_ptr + place, mask=is_part, other=float("-inf"))
    tokens = tl.load(part_tokens_ptr + place, mask=is_part, other=size - 1)
    return _first_largest(largest, tokens, size - 1)


@triton.jit
def greedy_kernel(
    tokens_ptr,
    largest_ptr,
    part_largest_ptr,
    part_tokens_ptr,
    size,
    PARTS: tl.constexpr,
    PART: tl.constexpr,
    IS_CHAINED: tl.constexpr,
):
    wait_for_inputs(IS_CHAINED)
    row = tl.program_id(0).to(tl.int64)
    token, largest = _largest(part_largest_ptr, part_tokens_ptr, row, size, PARTS, PART)
    tl.store(tokens_ptr + row, token)
    tl.store(largest_ptr + row, largest)


@triton.jit
def weights_kernel(
    weights_ptr,
    most_ptr,
    masses_ptr,
    part_largest_ptr,
    part_tokens_ptr,
    logits_ptr,
    inverse_temperature_ptr,
    min_p_ptr,
    logits_stride,
    size,
    PARTS: tl.constexpr,
    PART: tl.constexpr,
    IS_CHAINED: tl.constexpr,
):
    """The weights of rows that are drawn, and each part's largest one and mass."""
    wait_for_inputs(IS_CHAINED)
    row = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    _, largest = _largest(part_largest_ptr, part_tokens_ptr, row, size, PARTS, PART)
    inverse_temperature = tl.load(inverse_temperature_ptr + row)
    is_finite = tl.abs(largest) < float("inf")
    if (inverse_temperature != 0.0) & is_finite:
        tokens = part * PART + tl.arange(0, PART)
        is_token = tokens < size
        logits_ptr += row * logits_stride
        logits = tl.load(logits_ptr + tokens, mask=is_token, other=float("-inf"))
        weights = tl.exp((logits - largest) * inverse_temperature)
        is_kept = (weights > _LEAST_WEIGHT) & (weights >= tl.load(min_p_ptr + row))
        weights = tl.where(is_kept, weights, 0.0)
        tl.store(weights_ptr + row * size + tokens, weights, mask=is_token)
        place = row * tl.num_programs(1) + part
        tl.store(most_ptr + place, tl.max(weights, axis=0))
        tl.store(masses_ptr + place, tl.sum(_mass(weights), axis=0))


@triton.jit
def draw_kernel(
    tokens_ptr,
    largest_ptr,
    part_largest_ptr,
    part_tokens_ptr,
    weights_ptr,
    most_ptr,
    masses_ptr,
    inverse_temperature_ptr,
    top_k_ptr,
    top_p_ptr,
    chances_ptr,
    size,
    PARTS: tl.constexpr,
    PART: tl.constexpr,
    IS_CHAINED: tl.constexpr,
):
    wait_for_inputs(IS_CHAINED)
    row = tl.program_id(0).to(tl.int64)
    token, largest = _largest(part_largest_ptr, part_tokens_ptr, row, size, PARTS, PART)
    tl.store(largest_ptr + row, largest)
    is_finite = tl.abs(largest) < float("inf")
    if (tl.load(inverse_temperature_ptr + row) == 0.0) | (is_finite == 0):
        tl.store(tokens_ptr + row, token)
        return

    weights_ptr += row * size
    parts = tl.arange(0, PARTS)
    num_parts = tl.cdiv(size, PART)
    most_ptr += row * num_parts
    masses = tl.load(masses_ptr + row * num_parts + parts, mask=parts < num_parts, other=0)
    top_k = tl.load(top_k_ptr + row)
    least = size * 0
    if (top_k > 0) & (top_k < size):
        least = _highest_reaching(weights_ptr, most_ptr, size, least, top_k, False, PART)
        masses = _kept_masses(weights_ptr, most_ptr, size, least, PARTS, PART)
    top_p = tl.load(top_p_ptr + row)
    if top_p < 1.0:
        share = top_p.to(tl.float64) * tl.sum(masses, axis=0).to(tl.float64)
        wanted = share.to(tl.int64)
        wanted += (wanted.to(tl.float64) < share).to(tl.int64)
        likely = _highest_reaching(weights_ptr, most_ptr, size, least, wanted, True, PART)
        least = tl.maximum(least, likely)
        masses = _kept_masses(weights_ptr, most_ptr, size, least, PARTS, PART)
    total = tl.sum(masses, axis=0)
    target = (tl.load(chances_ptr + row) * total.to(tl.float64)).to(tl.int64)
    target = tl.minimum(target, total - 1)
    token = _token_at(weights_ptr, size, least, masses, target, PARTS, PART)
    tl.store(tokens_ptr + row, token)


@triton.jit(do_not_specialize=["num_top"], do_not_specialize_on_alignment=["tokens_ptr"])
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
            # The last that counts: `best` descends.
            last = tl.max(tl.where(tl.arange(0, TOP) >= num_top - 1, best, -(2**63)), axis=0)
            if tl.max(keys, axis=0) > last:
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
    parts, sizes = _part_largest(logits)
    greedy_kernel[(num_rows,)](tokens, largest, *parts, size, **sizes, num_warps=1)
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
    parts, sizes = _part_largest(logits)
    weights = logits.new_empty((num_rows, size))
    most, masses = torch.empty_like(parts[0]), torch.empty_like(parts[0], dtype=torch.int64)
    weights_kernel[parts[0].shape](
        weights,
        most,
        masses,
        *parts,
        logits,
        inverse_temperature,
        min_p,
        logits.stride(0),
        size,
        **sizes,
        num_warps=_NUM_WARPS,
    )
    draw_kernel[(num_rows,)](
        tokens,
        largest,
        *parts,
        weights,
        most,
        masses,
        inverse_temperature,
        top_k,
        top_p,
        chances,
        size,
        **sizes,
        num_warps=_NUM_WARPS,
    )
    return tokens, largest


def _part_largest(logits: Tensor) -> tuple[tuple[Tensor, Tensor], dict[str, int]]:
    """The largest logit of each part and its token, both [R, P], and the parts' constants."""
    num_rows, size = logits.shape
    part = _block(size)
    num_parts = cdiv(size, part)
    largest = logits.new_empty((num_rows, num_parts))
    tokens = torch.empty_like(largest, dtype=torch.int32)
    part_largest_kernel[largest.shape](
        *(largest, tokens, logits, logits.stride(0), size),
        PART=part,
        num_warps=_NUM_WARPS,
        **chained(logits.device),
    )
    sizes = {"PARTS": next_power_of_2(num_parts), "PART": part}
    return (largest, tokens), sizes | chained(logits.device)


def token_logprobs(
    logits: Tensor, rows: Tensor, token_ids: Tensor, num_top: int, is_normalized: bool = True
) -> tuple[Tensor, Tensor, Tensor]:
    if num_top > _TOP:
        return reference_sampling.token_logprobs(logits, rows, token_ids, num_top, is_normalized)
    num_entries, size = len(rows), logits.shape[1]
    values = logits.new_empty((num_entries, 1 + num_top))
    ids = token_ids.new_empty((num_entries, 1 + num_top))
    ranks = token_ids.new_empty(num_entries)
    top = _TOP if num_top else 1
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
        BLOCK=max(_block(size), top),
        num_warps=_NUM_WARPS,
    )
    return values, ids, ranks


def _block(size: int) -> int:
    return min(_BLOCK, next_power_of_2(size))
