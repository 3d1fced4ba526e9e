"""What is done to logits before a token is chosen, by Triton; and a row's random number.

Rows without penalties cost one load each.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from vllm_lite.kernels.reference_logits import MOST_COUNTED

_BLOCK = 1024
_MOST_COUNTED = tl.constexpr(MOST_COUNTED)


@triton.jit
def add_to_logits_kernel(
    logits_ptr, rows_ptr, tokens_ptr, values_ptr, logits_stride, num_pairs, BLOCK: tl.constexpr
):
    pairs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    is_pair = pairs < num_pairs
    rows = tl.load(rows_ptr + pairs, mask=is_pair, other=-1)
    tokens = tl.load(tokens_ptr + pairs, mask=is_pair, other=0)
    values = tl.load(values_ptr + pairs, mask=is_pair, other=0.0)
    ptrs = logits_ptr + rows * logits_stride + tokens
    logits = tl.load(ptrs, mask=rows >= 0, other=0.0)
    tl.store(ptrs, logits + values, mask=rows >= 0)


@triton.jit
def count_tokens_kernel(
    counts_ptr, slots_ptr, tokens_ptr, counts_stride, num_rows, BLOCK: tl.constexpr
):
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    is_row = rows < num_rows
    tokens = tl.load(tokens_ptr + rows, mask=is_row, other=-1)
    slots = tl.load(slots_ptr + rows, mask=is_row, other=0)
    ptrs = counts_ptr + slots * counts_stride + tokens
    counts = tl.load(ptrs, mask=tokens >= 0, other=0).to(tl.int32)
    tl.store(ptrs, tl.minimum(counts + 1, _MOST_COUNTED), mask=tokens >= 0)


@triton.jit
def penalize_kernel(
    logits_ptr,
    slots_ptr,
    prompted_ptr,
    counts_ptr,
    repetition_ptr,
    frequency_ptr,
    presence_ptr,
    logits_stride,
    prompted_stride,
    counts_stride,
    size,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    repetition = tl.load(repetition_ptr + row)
    frequency = tl.load(frequency_ptr + row)
    presence = tl.load(presence_ptr + row)
    if (repetition == 1.0) & (frequency == 0.0) & (presence == 0.0):
        return
    slot = tl.load(slots_ptr + row)
    tokens = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_token = tokens < size
    words = tl.load(prompted_ptr + slot * prompted_stride + tokens // 32, mask=is_token, other=0)
    times = tl.load(counts_ptr + slot * counts_stride + tokens, mask=is_token, other=0)
    times = times.to(tl.float32)
    is_generated = times > 0
    is_seen = is_generated | (((words >> (tokens % 32)) & 1) == 1)
    ptrs = logits_ptr + row * logits_stride + tokens
    logits = tl.load(ptrs, mask=is_token, other=0.0)
    bent = tl.where(logits > 0, tl.div_rn(logits, repetition), logits * repetition)
    logits = tl.where(is_seen, bent, logits)
    logits -= frequency * times + tl.where(is_generated, presence, 0.0)
    tl.store(ptrs, logits, mask=is_token)


@triton.jit
def counter_uniforms_kernel(out_ptr, keys_ptr, positions_ptr, num_rows, BLOCK: tl.constexpr):
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    is_row = rows < num_rows
    keys = tl.load(keys_ptr + rows, mask=is_row, other=0).to(tl.uint64, bitcast=True)
    steps = tl.load(positions_ptr + rows, mask=is_row, other=0) + 1
    x = keys + steps.to(tl.uint64, bitcast=True) * 0x9E3779B97F4A7C15
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB
    # Below 2**53: as a signed number, which is exact and converts fast.
    bits = ((x ^ (x >> 31)) >> 11).to(tl.int64, bitcast=True)
    tl.store(out_ptr + rows, bits.to(tl.float64) * 1.1102230246251565e-16, mask=is_row)


def add_to_logits(logits: Tensor, rows: Tensor, token_ids: Tensor, values: Tensor) -> None:
    grid = (triton.cdiv(len(rows), _BLOCK),)
    add_to_logits_kernel[grid](
        logits, rows, token_ids, values, logits.stride(0), len(rows), BLOCK=_BLOCK
    )


def count_tokens(counts: Tensor, slots: Tensor, token_ids: Tensor) -> None:
    grid = (triton.cdiv(len(slots), _BLOCK),)
    count_tokens_kernel[grid](counts, slots, token_ids, counts.stride(0), len(slots), BLOCK=_BLOCK)


def penalize_logits(
    logits: Tensor,
    slots: Tensor,
    prompted: Tensor,
    counts: Tensor,
    repetition: Tensor,
    frequency: Tensor,
    presence: Tensor,
) -> None:
    num_rows, size = logits.shape
    penalize_kernel[(num_rows, triton.cdiv(size, _BLOCK))](
        logits,
        slots,
        prompted,
        counts,
        repetition,
        frequency,
        presence,
        logits.stride(0),
        prompted.stride(0),
        counts.stride(0),
        size,
        BLOCK=_BLOCK,
    )


def counter_uniforms(keys: Tensor, positions: Tensor) -> Tensor:
    out = torch.empty(len(keys), dtype=torch.float64, device=keys.device)
    grid = (triton.cdiv(len(keys), _BLOCK),)
    counter_uniforms_kernel[grid](out, keys, positions, len(keys), BLOCK=_BLOCK)
    return out
