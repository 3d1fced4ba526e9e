"""Splits of the keys for attention by Triton (flash decoding), and the tiles of a step's queries.

A tile is of one request's queries. If few programs would leave the device idle, each attends to a
split of its keys, and a second kernel merges the results.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from vllm_lite.kernels.gpu import tuning
from vllm_lite.kernels.gpu.triton.chained import begin_next_and_wait, chained

# Names in tuning tables of what is not plain 16-bit attention.
_KIND_OF_ITEMS = {1: " narrow", 2: "", 4: " wide"}
# Measured on an H100 (benchmarks/NOTES.md).
_MIN_SPLIT_KEYS = 64
_MAX_SPLITS = 32
_PROGRAMS_A_PROCESSOR = 3


@triton.jit
def first_tile(query_start_loc_ptr, request, BLOCK_Q: tl.constexpr):
    """The request's first tile; tiles of several queries leave room to round up."""
    start = tl.load(query_start_loc_ptr + request)
    if BLOCK_Q > 1:
        start = start // BLOCK_Q + request
    return start


@triton.jit
def find_request(query_start_loc_ptr, tile, num_requests, BLOCK_Q: tl.constexpr):
    """The last request whose first tile is not after `tile`."""
    low = 0
    high = num_requests
    while low < high:
        middle = (low + high) // 2
        if first_tile(query_start_loc_ptr, middle, BLOCK_Q) <= tile:
            low = middle + 1
        else:
            high = middle
    return low - 1


@triton.jit(do_not_specialize=["num_requests", "num_splits"])
def merge_splits_kernel(
    out_ptr,
    partial_ptr,
    query_start_loc_ptr,
    num_requests,
    num_heads,
    num_splits,
    SPLITS: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
    BLOCK_D: tl.constexpr,
    IS_CHAINED: tl.constexpr,
):
    begin_next_and_wait(IS_CHAINED)
    row = tl.program_id(0).to(tl.int64)  # token * H + head
    # Of a token of no request nothing was written; it gets zeros.
    is_token = row // num_heads < tl.load(query_start_loc_ptr + num_requests)
    splits = tl.arange(0, SPLITS)
    is_split = splits < tl.where(is_token, num_splits, 0)
    columns = tl.arange(0, BLOCK_D)
    is_column = columns < HEAD_SIZE
    place = (row * num_splits + splits) * (HEAD_SIZE + 2)
    largest = tl.load(partial_ptr + place + HEAD_SIZE, mask=is_split, other=float("-inf"))
    total = tl.load(partial_ptr + place + HEAD_SIZE + 1, mask=is_split, other=0.0)
    acc = tl.load(
        partial_ptr + place[:, None] + columns[None, :],
        mask=is_split[:, None] & is_column[None, :],
        other=0.0,
    )
    most = tl.max(largest, axis=0)
    keep = tl.exp2(largest - tl.where(most == float("-inf"), 0.0, most))
    whole = tl.sum(total * keep, axis=0)
    out = tl.sum(acc * keep[:, None], axis=0) / tl.where(whole == 0.0, 1.0, whole)
    tl.store(out_ptr + row * HEAD_SIZE + columns, out, mask=is_column)


@dataclass(frozen=True, slots=True)
class Tiling:
    """Queries, rows, keys and columns of a tile, and its launch options."""

    block_q: int
    block_m: int
    block_n: int
    block_d: int
    num_warps: int
    num_stages: int

    def num_tiles(self, num_tokens: int, num_requests: int) -> int:
        """Enough tiles for requests of any lengths; surplus programs return at once."""
        return num_tokens // self.block_q + (0 if self.block_q == 1 else num_requests)

    def launch(self) -> dict[str, int]:
        """The tiling as a launch's arguments."""
        return {
            "BLOCK_Q": self.block_q,
            "BLOCK_M": self.block_m,
            "BLOCK_N": self.block_n,
            "BLOCK_D": self.block_d,
            "num_warps": self.num_warps,
            "num_stages": self.num_stages,
        }


def choose_tiling(
    group: int, head_size: int, is_decode: bool, item_size: int, on: torch.device
) -> Tiling:
    """Choose the tile for `group` query heads a kv-head; items have `item_size` bytes.

    item_size is 4 for float32 queries, 1 for an 8-bit cache, and 2 otherwise.
    Decode uses the fewest rows of a matrix instruction, prefill what registers hold; larger
    groups use more.
    """
    kind = ("decode" if is_decode else "prefill") + _KIND_OF_ITEMS[item_size]
    tile = tuning.attention_tile(kind, head_size, on)
    block_d = max(16, triton.next_power_of_2(head_size))
    block_m = max(tile.rows, triton.next_power_of_2(group))
    return Tiling(
        block_q=1 if is_decode else block_m // group,
        block_m=block_m,
        block_n=tile.keys,
        block_d=block_d,
        num_warps=tile.num_warps if block_m == tile.rows else max(tile.num_warps, 8),
        num_stages=tile.num_stages,
    )


def num_splits(num_programs: int, max_seq_len: int, num_processors: int) -> int:
    """Number of splits of the keys that gives every processor work."""
    if num_programs >= num_processors:
        return 1
    wanted = _PROGRAMS_A_PROCESSOR * num_processors // num_programs
    wanted = min(wanted, max_seq_len // _MIN_SPLIT_KEYS, _MAX_SPLITS)
    return max(1, wanted)


def room_for_partials(query: Tensor, value_size: int, splits: int) -> Tensor:
    """Allocate partial results of query [T, H, D]: [T, H, splits, value_size + 2] float32."""
    shape = (*query.shape[:2], splits, value_size + 2)
    return query.new_empty(shape, dtype=torch.float32)


def merge(out: Tensor, partial: Tensor, query_start_loc: Tensor, block_d: int) -> Tensor:
    """Merge partial results [T, H, splits, D + 2] into out [T, H, D]."""
    num_tokens, num_heads, splits, _ = partial.shape
    merge_splits_kernel[(num_tokens * num_heads,)](
        out,
        partial,
        query_start_loc,
        len(query_start_loc) - 1,
        num_heads,
        splits,
        SPLITS=triton.next_power_of_2(splits),
        HEAD_SIZE=out.shape[2],
        BLOCK_D=block_d,
        **chained(out.device),
    )
    return out
