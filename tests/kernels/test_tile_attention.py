"""Attention on emulated AMX tiles equals the reference, and chunks never change a bit.

On machines with tiles, AMX is also one of the instruction sets of the other attention tests.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from tests.kernels import emulated_tiles
from tests.kernels.emulated_tiles import EmulatedTiles
from tests.kernels.test_attention import Batch, batch
from vllm_lite import _cpu

# Rows below, at and beyond what fills a tile and a group of two; contexts around a block of keys.
LENS = [(1, 1), (1, 64), (5, 5), (40, 41), (17, 130), (3, 600)]


@pytest.fixture(params=emulated_tiles.kinds())
def tiles(request: pytest.FixtureRequest) -> Iterator[EmulatedTiles]:
    """Chosen; a machine without AVX512-BF16 does the same without tiles."""
    built = emulated_tiles.build(request.param)
    before = _cpu.selected_isa()
    _cpu.select_isa(emulated_tiles.base_isa())
    with built.chosen():
        yield built
    _cpu.select_isa(before)


def part(whole: Batch, begin: int, end: int) -> Batch:
    """Tokens [begin, end) of a prompt, after those before."""
    return replace(
        whole,
        query=whole.query[begin:end],
        query_start_loc=torch.tensor([0, end - begin], dtype=torch.int32),
        seq_lens=torch.tensor([end], dtype=torch.int32),
    )


@pytest.mark.parametrize("size", [1, 7, 16, 40, 64, 80, 96, 128])
@pytest.mark.parametrize("narrow", [None, "e4m3", "scaled int8"])
def test_it_equals_the_reference(size: int, narrow: str | None, tiles: EmulatedTiles) -> None:
    before = tiles.num_trapped
    batch(LENS, size=size, dtype=torch.bfloat16, narrow=narrow).check()
    assert not tiles.is_trapped or tiles.num_trapped > before


@pytest.mark.skipif(not emulated_tiles.can_use_real(), reason="no tile instructions can run here")
@pytest.mark.parametrize("size", [7, 64, 128])
@pytest.mark.parametrize("narrow", [None, "scaled int8"])
def test_instructions_give_the_emulated_units_bits(size: int, narrow: str | None) -> None:
    case = batch(LENS, size=size, dtype=torch.bfloat16, narrow=narrow)
    before = _cpu.selected_isa()
    _cpu.select_isa(emulated_tiles.base_isa())
    with emulated_tiles.build("plain").chosen():
        want = case.attend()
    with emulated_tiles.real_tiles():
        assert torch.equal(case.attend(), want)
    _cpu.select_isa(before)


@pytest.mark.usefixtures("tiles")
@pytest.mark.parametrize("heads", [(1, 1), (8, 8), (32, 4), (64, 1)])
def test_head_groups(heads: tuple[int, int]) -> None:
    batch([(1, 100), (20, 90)], heads=heads, dtype=torch.bfloat16).check()


@pytest.mark.usefixtures("tiles")
@pytest.mark.parametrize("window", [1, 17, 64, 65, 513])
def test_windows_and_caps(window: int) -> None:
    case = batch([(1, 65), (70, 600)], heads=(4, 2), size=32, dtype=torch.bfloat16)
    replace(case, sliding_window=window).check()
    replace(case, query=case.query * 5, sliding_window=window, soft_cap=10.0).check()


@pytest.mark.usefixtures("tiles")
def test_other_types_do_not_use_tiles() -> None:
    batch(LENS).check()
    batch(LENS, dtype=torch.bfloat16, cache_dtype=torch.float32).check()


@pytest.mark.usefixtures("tiles")
@pytest.mark.parametrize(
    ("size", "window", "narrow"), [(64, 0, None), (40, 100, None), (64, 100, "scaled int8")]
)
def test_chunking_never_changes_a_bit(size: int, window: int, narrow: str | None) -> None:
    case = batch([(600, 600)], size=size, dtype=torch.bfloat16, narrow=narrow)
    whole = replace(case, sliding_window=window)
    expected = whole.attend()
    for begin, end in pairwise([0, 1, 2, 65, 200, 512, 590, *range(591, 601)]):
        assert torch.equal(part(whole, begin, end).attend(), expected[begin:end])


@pytest.mark.usefixtures("tiles")
def test_other_requests_never_change_a_bit() -> None:
    together = batch(LENS, dtype=torch.bfloat16)
    outputs = together.attend()
    for r, (begin, end) in enumerate(pairwise(together.query_start_loc.tolist())):
        alone = replace(
            together,
            query=together.query[begin:end],
            block_table=together.block_table[r : r + 1],
            query_start_loc=torch.tensor([0, end - begin], dtype=torch.int32),
            seq_lens=together.seq_lens[r : r + 1],
        )
        assert torch.equal(alone.attend(), outputs[begin:end])


def in_halves(cache: torch.Tensor) -> torch.Tensor:
    """The same cache with each block as two."""
    blocks, heads, slots, size = cache.shape
    halves = cache.view(blocks, heads, 2, slots // 2, size).transpose(1, 2)
    return halves.reshape(2 * blocks, heads, slots // 2, size)


@pytest.mark.usefixtures("tiles")
@pytest.mark.parametrize("size", [32, 64, 128])
@pytest.mark.parametrize("window", [0, 70])
def test_keys_as_stored_give_the_bits_of_packed_ones(size: int, window: int) -> None:
    """Blocks of eight slots hold no whole tile of keys, so theirs are packed."""
    case = replace(
        batch([(1, 15), (1, 200), (4, 530)], size=size, dtype=torch.bfloat16),
        sliding_window=window,
    )
    table = case.block_table.repeat_interleave(2, dim=1) * 2
    table[:, 1::2] += 1
    packed = replace(
        case,
        key_cache=in_halves(case.key_cache),
        value_cache=in_halves(case.value_cache),
        block_table=table,
    )
    assert torch.equal(case.attend(), packed.attend())


@pytest.mark.usefixtures("tiles")
def test_slots_behind_the_last_key_may_hold_anything() -> None:
    case = batch([(1, 37)], dtype=torch.bfloat16)
    expected = case.attend()
    for cache in (case.key_cache, case.value_cache):
        cache[case.block_table[0, 2], :, 5:] = torch.nan
    assert torch.equal(case.attend(), expected)


@pytest.mark.usefixtures("tiles")
@pytest.mark.parametrize("size", [40, 64])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_non_finite_values_stay_within_their_request(bad: float, size: int) -> None:
    """Neither another request's numbers nor what scratch memory holds is ever multiplied."""
    case = batch([(3, 40), (3, 40)], size=size, dtype=torch.bfloat16)
    expected = case.attend()
    for cache in (case.key_cache, case.value_cache):
        cache[case.block_table[0, 0]] = bad
    output = case.attend()
    assert output[:3].isnan().all()
    assert torch.equal(output[3:], expected[3:])
