"""Splits of the keys for attention by Triton (flash decoding), and the tiles of a step's queries.

A tile is of one request's queries. If few programs would leave the device idle, each attends to a
split of its keys, and a second kernel merges the results. A launch has room for the splits of the
longest request; a tile of fewer keys has fewer splits, and surplus programs say just that. A step
of requests of several lengths takes two passes: prompts by their tiles, and requests whose queries
fit decode's by those.

Partial results of an owner and head lie side by side as float32: each split's unnormalised sum,
each one's largest score and each one's total. A surplus split has a largest score of -inf alone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from vllm_lite.kernels.gpu import tuning
from vllm_lite.kernels.gpu.sizes import next_power_of_2
from vllm_lite.kernels.gpu.triton.chained import begin_next_and_wait, chained
from vllm_lite.kernels.gpu.triton.launch import launch

# Names in tuning tables of what is not plain 16-bit attention.
_KIND_OF_ITEMS = {1: " narrow", 2: "", 4: " wide"}
# Measured on an H100 (benchmarks/NOTES.md).
_MIN_SPLIT_KEYS = tl.constexpr(64)
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


@triton.jit
def first_visible(position, window, HAS_WINDOW: tl.constexpr):
    """The first key that a query at `position` sees."""
    if HAS_WINDOW == "chunk":
        first = position // window * window
    elif HAS_WINDOW:
        first = tl.maximum(position - window + 1, 0)
    else:
        first = 0
    return first


@triton.jit
def rows_of_tile(
    first_query,
    query_len,
    kv_head,
    GROUP: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    BLOCK_M: tl.constexpr,
):
    """Return the query and the head of each row of a tile, and whether it has any."""
    rows = tl.arange(0, BLOCK_M)
    queries = first_query + rows // GROUP
    heads = kv_head * GROUP + rows % GROUP
    return queries, heads, (rows < BLOCK_Q * GROUP) & (queries < query_len)


@triton.jit
def partial_row(
    request,
    start,
    queries,
    heads,
    num_heads,
    BLOCK_Q: tl.constexpr,
    BY_REQUEST: tl.constexpr,
):
    """Owner * H + head of each row of a tile."""
    # Of requests' tiles [requests, BLOCK_Q, H, ...]: no room for tokens of other passes.
    owner = (start + queries).to(tl.int64)
    if BY_REQUEST:
        owner = request.to(tl.int64) * BLOCK_Q + queries
    return owner * num_heads + heads


@triton.jit
def split_keys(num_keys, split, num_splits, BLOCK_N: tl.constexpr):
    """Return (first key of `split` of a tile's `num_keys` keys, its most keys)."""
    tiles = tl.cdiv(num_keys, BLOCK_N)
    of_split = tl.maximum(tl.cdiv(tiles, num_splits), tl.cdiv(_MIN_SPLIT_KEYS, BLOCK_N))
    keys = of_split * BLOCK_N
    return split * keys, keys


@triton.jit
def partials_stride(num_splits, VALUE_SIZE: tl.constexpr):
    """Numbers of the partial results of an owner and head, in whole sectors of 32 bytes."""
    return (num_splits * (VALUE_SIZE + 2) + 7) // 8 * 8


@triton.jit
def store_no_partial(partial_ptr, row, split, num_splits, is_row, VALUE_SIZE: tl.constexpr):
    """Store that a tile's rows have no keys in `split`; `row` as of `store_partial`."""
    # The number of splits instead, kept for the end, took 22 registers more.
    behind = partial_ptr + row * partials_stride(num_splits, VALUE_SIZE) + num_splits * VALUE_SIZE
    tl.store(behind + split, tl.full(row.shape, float("-inf"), tl.float32), mask=is_row)


@triton.jit
def store_partial(
    partial_ptr, row, split, num_splits, acc, largest, total, is_row, VALUE_SIZE: tl.constexpr
):
    """Store a split's results of a tile's rows; `row` is their owner * H + head."""
    base = partial_ptr + row * partials_stride(num_splits, VALUE_SIZE)
    columns = tl.arange(0, acc.shape[1])
    sums = base[:, None] + split * VALUE_SIZE + columns[None, :]
    tl.store(sums, acc, mask=is_row[:, None] & (columns < VALUE_SIZE)[None, :])
    behind = base + num_splits * VALUE_SIZE
    tl.store(behind + split, largest, mask=is_row)
    tl.store(behind + num_splits + split, total, mask=is_row)


@triton.jit(do_not_specialize=["num_requests", "num_splits", "block_q"])
def merge_splits_kernel(
    out_ptr,
    partial_ptr,
    query_start_loc_ptr,
    num_requests,
    num_heads,
    num_splits,
    block_q,
    SPLITS: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
    BLOCK_D: tl.constexpr,
    IS_CHAINED: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)  # token * H + head
    token = row // num_heads
    is_own = token >= 0
    if block_q > 0:
        # (request * block_q + query) * H + head; requests of more queries were not split.
        request = token // block_q
        query = token % block_q
        start = tl.load(query_start_loc_ptr + request).to(tl.int64)
        query_len = tl.load(query_start_loc_ptr + request + 1) - start
        is_own = (query_len <= block_q) & (query < query_len)
        token = start + query
    # Of a token of no request nothing was written; it gets zeros.
    is_token = is_own & (token < tl.load(query_start_loc_ptr + num_requests))
    begin_next_and_wait(IS_CHAINED)
    base = partial_ptr + row * partials_stride(num_splits, HEAD_SIZE)
    behind = base + num_splits * HEAD_SIZE
    splits = tl.arange(0, SPLITS)
    is_split = splits < tl.where(is_token, num_splits, 0)
    columns = tl.arange(0, BLOCK_D)
    is_column = columns < HEAD_SIZE
    # Any numbers where another pass writes the token afterwards.
    largest = tl.load(behind + splits, mask=is_split, other=float("-inf"))
    is_split = is_split & (largest != float("-inf"))
    total = tl.load(behind + num_splits + splits, mask=is_split, other=0.0)
    acc = tl.load(
        base + splits[:, None] * HEAD_SIZE + columns[None, :],
        mask=is_split[:, None] & is_column[None, :],
        other=0.0,
    )
    most = tl.max(largest, axis=0)
    keep = tl.exp2(largest - tl.where(most == float("-inf"), 0.0, most))
    whole = tl.sum(total * keep, axis=0)
    out = tl.sum(acc * keep[:, None], axis=0) / tl.where(whole == 0.0, 1.0, whole)
    out_row = token * num_heads + row % num_heads
    is_stored = columns < tl.where(is_own, HEAD_SIZE, 0)
    tl.store(out_ptr + out_row * HEAD_SIZE + columns, out, mask=is_stored)


@dataclass(frozen=True, slots=True)
class Tiling:
    """Queries, rows, keys and columns of a tile, and its launch options."""

    block_q: int
    block_m: int
    block_n: int
    block_d: int
    num_warps: int
    num_stages: int
    descriptor_stages: int = 0

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
    block_d = max(16, next_power_of_2(head_size))
    block_m = max(tile.rows, next_power_of_2(group))
    return Tiling(
        block_q=1 if is_decode else block_m // group,
        block_m=block_m,
        block_n=tile.keys,
        block_d=block_d,
        num_warps=tile.num_warps if block_m == tile.rows else max(tile.num_warps, 8),
        num_stages=tile.num_stages,
        descriptor_stages=tile.descriptor_stages,
    )


def num_splits(num_programs: int, max_seq_len: int, num_processors: int) -> int:
    """Number of splits of the keys that gives every processor work."""
    if num_programs >= num_processors:
        return 1
    wanted = _PROGRAMS_A_PROCESSOR * num_processors // num_programs
    wanted = min(wanted, max_seq_len // int(_MIN_SPLIT_KEYS.value), _MAX_SPLITS)
    return max(1, wanted)


@dataclass(frozen=True, slots=True)
class Heads:
    """Heads of a layer and bytes of an item of its cache, from which tiles and splits follow."""

    num_kv_heads: int
    group: int  # query heads a kv-head
    size: int
    item_size: int  # as of choose_tiling


@dataclass(frozen=True, slots=True)
class Pass:
    """One launch of a step's attention: over all requests, or over some of certain lengths."""

    tiling: Tiling
    num_tiles: int
    splits: int
    # Requests of fewer queries are another pass's.
    fewest: int = 0
    # A tile for each request; those of more queries than it holds are another pass's.
    by_request: bool = False

    @property
    def is_decode(self) -> bool:
        """Whether there is a program for each token."""
        return self.tiling.block_q == 1 and not self.by_request

    def num_owners(self, num_tokens: int) -> int:
        """Of partial results of a head: tokens, or places in requests' tiles."""
        return self.num_tiles * self.tiling.block_q if self.by_request else num_tokens

    def launch(self, by_descriptor: bool) -> dict[str, bool | int]:
        """The pass as a launch's constants."""
        return {
            "BY_REQUEST": self.by_request,
            "IS_SPLIT": self.splits > 1,
            **self.tiling.launch(),
            "BY_DESCRIPTOR": by_descriptor,
            **({"num_stages": self.tiling.descriptor_stages} if by_descriptor else {}),
        }


def plan_passes(
    num_tokens: int, num_requests: int, heads: Heads, max_seq_len: int, on: torch.device
) -> tuple[Pass, ...]:
    """Choose the passes of a step, in this order.

    The first one's merge writes the second one's tokens too, of which it has no results.
    """
    processors = tuning.num_processors(on)

    def tiling(is_decode: bool) -> Tiling:
        return choose_tiling(heads.group, heads.size, is_decode, heads.item_size, on)

    def splits(num_tiles: int) -> int:
        return num_splits(num_tiles * heads.num_kv_heads, max_seq_len, processors)

    if not tuning.is_fixed():
        decode = tiling(is_decode=True)
        if num_tokens == num_requests:
            return (Pass(decode, num_tokens, splits(num_tokens)),)
        decode = replace(decode, block_q=decode.block_m // heads.group)
        few = Pass(decode, num_requests, splits(num_requests), by_request=True)
        if num_tokens <= decode.block_q:
            return (few,)
    prompts = tiling(is_decode=False)
    num_tiles = prompts.num_tiles(num_tokens, num_requests)
    many = Pass(prompts, num_tiles, splits(num_tiles))
    if num_requests == 1 or tuning.is_fixed():
        return (many,)
    return replace(many, fewest=decode.block_q + 1), few


def tile_rows(
    key_cache: Tensor, value_cache: Tensor, head_size: int, window: int, tiling: Tiling
) -> tuple[TensorDescriptor, TensorDescriptor] | None:
    """Descriptors of [blocks, heads * block size, head size], if tiles are to be read by them.

    A tile has to lie in one block of a 16-bit cache, and a row to fill it without a mask.
    """
    size = key_cache.shape[3]
    if (
        not tiling.descriptor_stages
        or key_cache.itemsize != 2
        or not size == value_cache.shape[3] == head_size == tiling.block_d
        or key_cache.shape[2] % tiling.block_n
        or window > 0  # all tiles have masks
        or any(c.data_ptr() % 16 or c.stride(0) % 8 for c in (key_cache, value_cache))
    ):
        return None
    blocks, heads, block_size, _ = key_cache.shape
    shape, block = [blocks, heads * block_size, size], [1, tiling.block_n, size]
    keys, values = (
        TensorDescriptor(cache, shape, [cache.stride(0), size, 1], block)
        for cache in (key_cache, value_cache)
    )
    return keys, values


def room_for_partials(query: Tensor, value_size: int, splits: int, num_owners: int) -> Tensor:
    """Allocate partial results of query [T, H, D]: [owners, H, stride] float32.

    Owners are the tokens, or places of tokens in requests' tiles.
    """
    stride = (splits * (value_size + 2) + 7) // 8 * 8  # as of partials_stride
    return query.new_empty((num_owners, query.shape[1], stride), dtype=torch.float32)


def merge(
    out: Tensor,
    partial: Tensor,
    query_start_loc: Tensor,
    splits: int,
    block_d: int,
    block_q: int = 0,
) -> Tensor:
    """Merge partial results of tokens into out [T, H, D].

    With `block_q` their owners are [requests * block_q], of requests of no more queries.
    """
    num_owners, num_heads, _ = partial.shape
    launch(
        merge_splits_kernel,
        (num_owners * num_heads,),
        out,
        partial,
        query_start_loc,
        query_start_loc.shape[0] - 1,
        num_heads,
        splits,
        block_q,
        SPLITS=next_power_of_2(splits),
        HEAD_SIZE=out.shape[2],
        BLOCK_D=block_d,
        **chained(out.device),
    )
    return out
