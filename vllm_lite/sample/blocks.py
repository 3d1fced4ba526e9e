"""Searches and sums over vocabulary rows, block by block: one fast pass, then little work.

A block's reduction is the same whatever the number of rows, so a row's result never depends
on its batch.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

_SEARCH_BLOCK = 64
_SUM_BLOCK = 256


def largest(values: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` largest of each row of `values` [R, V], descending, and their indices [R, count].

    The largest values lie in the blocks with the largest maxima, so only those are searched.
    """
    size = values.shape[-1]
    num_blocks = size // _SEARCH_BLOCK
    if count * 4 > num_blocks:
        top = values.topk(count)
        return top.values, top.indices
    body_size = num_blocks * _SEARCH_BLOCK
    body = values[:, :body_size].view(len(values), num_blocks, _SEARCH_BLOCK)
    blocks = body.amax(-1).topk(count, sorted=False).indices
    found = body.gather(1, blocks[..., None].expand(-1, -1, _SEARCH_BLOCK)).flatten(1)
    inside = torch.arange(_SEARCH_BLOCK, device=values.device)
    ids = (blocks[..., None] * _SEARCH_BLOCK + inside).flatten(1)
    if body_size < size:
        tail = torch.arange(body_size, size, device=values.device)
        found = torch.cat([found, values[:, body_size:]], dim=1)
        ids = torch.cat([ids, tail.expand(len(ids), -1)], dim=1)
    top = found.topk(count)
    return top.values, ids.gather(1, top.indices)


def descending(values: Tensor) -> Tensor:
    """Each row of `values` [R, V], largest first."""
    if values.device.type == "cpu":
        # numpy's sort is vectorised; torch's takes tens of times as long here.
        return torch.from_numpy(np.sort(values.numpy(), axis=-1)).flip(-1)
    return values.sort(-1, descending=True).values


def argmax(values: Tensor) -> Tensor:
    """Index of each row's largest value, [R] int64; of the first NaN where there is one."""
    if values.device.type == "cpu":
        # As with sorting: numpy's is vectorised.
        return torch.from_numpy(values.numpy().argmax(-1))
    return values.argmax(-1)


def zero_below(values: Tensor, least: Tensor) -> None:
    """Set what is less than its row's `least` [R, 1] in `values` [R, V] to zero, in place."""
    if values.device.type == "cpu":
        # Here torch would convert the mask, or branch on it; numpy multiplies by it.
        array = values.numpy()
        np.multiply(array, array >= least.numpy(), out=array)
    else:
        values.masked_fill_(values < least, 0.0)


def running_block_sums(weights: Tensor) -> Tensor:
    """Sum of each row of `weights` [R, V] up to the end of each block; [R, blocks] float64."""
    size = weights.shape[-1]
    num_blocks = size // _SUM_BLOCK
    body_size = num_blocks * _SUM_BLOCK
    sums = weights[:, :body_size].view(len(weights), num_blocks, _SUM_BLOCK).sum(-1)
    if body_size < size:
        sums = torch.cat([sums, weights[:, body_size:].sum(-1, keepdim=True)], dim=1)
    return sums.cumsum(-1, dtype=torch.float64)


def draw(weights: Tensor, uniforms: Tensor) -> Tensor:
    """Draw one index a row with probability in proportion to `weights`; [R] int64.

    `weights` [R, V] float32, non-negative, each row with a positive sum; `uniforms` [R]
    float64 in [0, 1). Inverts the cumulative distribution in vocabulary order. A weight of
    zero is never drawn.
    """
    size = weights.shape[-1]
    running = running_block_sums(weights)
    target = uniforms[:, None] * running[:, -1:]
    block = _first_beyond(running, target)
    before = running.gather(1, (block - 1).clamp(min=0)) * (block > 0)
    ids = block * _SUM_BLOCK + torch.arange(_SUM_BLOCK, device=weights.device)
    inside = weights.gather(1, ids.clamp(max=size - 1)) * (ids < size)
    offset = _first_beyond(inside.cumsum(-1, dtype=torch.float64), target - before)
    return (block * _SUM_BLOCK + offset)[:, 0]


def _first_beyond(running: Tensor, target: Tensor) -> Tensor:
    """First index [R, 1] whose running sum exceeds `target`; at most the last one that adds."""
    index = torch.searchsorted(running, target, right=True)
    last = torch.searchsorted(running, running[:, -1:].contiguous())
    return torch.minimum(index, last)
