"""Attention with slopes, sinks and caches inside other memory, in Triton's interpreter."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

pytest.importorskip("triton")
import triton
import triton.language as tl

from tests.kernels.test_attention import NARROW, Batch, batch
from tests.kernels.test_attention_forms import in_pages
from vllm_lite.kernels.gpu import tuning
from vllm_lite.kernels.gpu.triton import ops, quantize
from vllm_lite.kernels.gpu.triton.attention import latent as latent_attention
from vllm_lite.kernels.gpu.triton.attention import paged as attention
from vllm_lite.kernels.gpu.triton.attention.splits import (
    Heads,
    Pass,
    plan_passes,
    room_for_partials,
    tile_rows,
)
from vllm_lite.kernels.reference.ops import Ops as reference

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def both(case: Batch, **options: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The attention of our kernels and of the reference."""
    caches = (case.key_cache, case.value_cache)
    where = (case.block_table, case.query_start_loc, case.seq_lens)
    ours, theirs = (
        module.paged_attention(
            case.query, *caches, *where, 0.2, case.sliding_window, case.soft_cap, **options
        )
        for module in (ops, reference)
    )
    return ours, theirs


@pytest.mark.parametrize("splits", [False, True])
@pytest.mark.parametrize("options", ["alibi", "sinks", "both"])
def test_slopes_and_sinks(options: str, splits: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = {}
    if options != "sinks":
        chosen["alibi_slopes"] = torch.rand(9) / 4
    if options != "alibi":
        chosen["sinks"] = torch.randn(9) * 3
        chosen["sinks"][1] = -float("inf")
    cases = [batch([(9, 40), (1, 7), (3, 70)], size=16)]
    if splits:
        monkeypatch.setattr(tuning, "processor_count", lambda _: 64)
        cases = [batch([(1, 300), (1, 3)], size=16), batch([(5, 270)], size=16)]
    for case in cases:
        for changed in (case, replace(case, sliding_window=33, soft_cap=2.0)):
            torch.testing.assert_close(*both(changed, **chosen), rtol=3e-5, atol=2e-5)


def test_a_sink_is_a_key_without_a_value() -> None:
    """A sink far above all scores leaves nothing of the values, one far below changes nothing."""
    case = batch([(3, 20)], size=16)
    plain = both(case)[0]
    for sink, share in ((50.0, 0.0), (-50.0, 1.0)):
        ours = both(case, sinks=torch.full((9,), sink))[0]
        torch.testing.assert_close(ours, plain * share)


def test_padding_is_zero_whatever_the_split(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "processor_count", lambda _: 64)
    case = batch([(1, 300), (1, 300), (0, 0)], size=16)
    query = torch.cat([case.query, torch.randn(3, 9, 16)])
    real_empty = torch.Tensor.new_empty

    def full_of_garbage(like: torch.Tensor, *args: object, **kwargs: object) -> torch.Tensor:
        return real_empty(like, *args, **kwargs).fill_(7)  # type: ignore[arg-type, no-any-return]

    monkeypatch.setattr(torch.Tensor, "new_empty", full_of_garbage)
    ours, theirs = both(replace(case, query=query))
    assert (ours[2:] == 0).all()
    torch.testing.assert_close(ours, theirs, rtol=3e-5, atol=2e-5)


@pytest.mark.parametrize("narrow", [None, "e4m3", "scaled int8"])
def test_a_cache_may_be_a_part_of_pages(narrow: str | None) -> None:
    case = batch([(9, 40), (1, 7)], size=40, narrow=narrow)
    caches = [in_pages(cache, 1000, 7) for cache in (case.key_cache, case.value_cache)]
    paged = replace(case, key_cache=caches[0], value_cache=caches[1])
    assert torch.equal(both(paged)[0], both(case)[0])
    key, value = torch.randn(2, 5, 3, 40)
    slots = torch.tensor([3, -1, 40, 17, 16])
    plain = [case.key_cache.clone(), case.value_cache.clone()]
    ops.reshape_and_cache(key, value, *plain, slots)
    ops.reshape_and_cache(key, value, *caches, slots)
    for ours, theirs in zip(caches, plain, strict=True):
        assert torch.equal(ours.view(torch.uint8), theirs.view(torch.uint8))


@pytest.mark.parametrize("splits", [False, True])
@pytest.mark.parametrize(
    ("sizes", "narrow"), [((40, 24), None), ((20, 36), "e4m3"), ((40, 24), "scaled int8")]
)
def test_values_of_another_size(
    sizes: tuple[int, int], narrow: str | None, splits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if splits:
        monkeypatch.setattr(tuning, "processor_count", lambda _: 64)
    for lens in ([(1, 300), (1, 3)], [(9, 40), (1, 7), (3, 70), (0, 0)]):
        keyed, valued = (batch(lens, (4, 2), size, narrow=narrow) for size in sizes)
        case = replace(keyed, value_cache=valued.value_cache)
        ours, theirs = both(case)
        assert ours.shape[-1] == sizes[1]
        torch.testing.assert_close(ours, theirs, rtol=3e-5, atol=2e-5)
    key, value = (torch.randn(5, 2, size) for size in sizes)
    slots = torch.tensor([3, -1, 40, 17, 16])
    written = []
    for module in (ops, reference):
        caches = [keyed.key_cache.clone(), valued.value_cache.clone()]
        module.reshape_and_cache(key, value, *caches, slots)
        written.append([cache.view(torch.uint8) for cache in caches])
    assert all(torch.equal(*pair) for pair in zip(*written, strict=True))


@pytest.mark.parametrize("splits", [False, True])
@pytest.mark.parametrize(("num_heads", "sizes"), [(5, (40, 32)), (20, (24, 20))])
def test_latents(
    num_heads: int, sizes: tuple[int, int], splits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Values are the first numbers of keys; reading past the written ones would show NaN."""
    if splits:
        monkeypatch.setattr(tuning, "processor_count", lambda _: 64)
    key_size, value_size = sizes
    for lens in ([(1, 300), (1, 3)], [(9, 40), (1, 7), (3, 70), (0, 0)]):
        case = batch(lens, (num_heads, 1), key_size)
        for cache in (case.key_cache, case.key_cache.to(torch.float8_e5m2)):
            pages = in_pages(cache, 1000, 8)
            latent = replace(case, key_cache=pages, value_cache=pages[..., :value_size])
            ours, theirs = both(latent)
            assert ours.shape[-1] == value_size
            torch.testing.assert_close(ours, theirs, rtol=3e-5, atol=2e-5)
            with pytest.raises(ValueError, match="scores as they are"):
                both(replace(latent, soft_cap=2.0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float8_e4m3fn])
def test_latents_are_written_once(dtype: torch.dtype) -> None:
    keys = torch.randn(5, 1, 40)
    slots = torch.tensor([3, -1, 40, 17, 16])
    caches = [torch.zeros(4, 1, 16, 40).to(dtype) for _ in range(2)]
    for module, cache in zip((ops, reference), caches, strict=True):
        module.reshape_and_cache(keys, keys[..., :32], cache, cache[..., :32], slots)
    assert torch.equal(*(cache.view(torch.uint8) for cache in caches))


@pytest.mark.parametrize("sizes", [(40, 33, 7), (70, 96, 0), (16, 8, 64)])
def test_linear_layers_of_heads(sizes: tuple[int, int, int]) -> None:
    outputs, inputs, copied = sizes
    x = torch.randn(70, 4, inputs + copied)[:, 1:]
    packed = ops.pack_heads(torch.randn(3, outputs, inputs) / inputs**0.5)
    for rows in (x[:1], x):
        ours = ops.head_linear(rows, packed)
        torch.testing.assert_close(ours, reference.head_linear(rows, packed), rtol=1e-4, atol=1e-4)


# Prompts, requests that fit decode's tile or just do not (5 or 6 queries of 3 heads), and none.
STEPS = {
    "prompts whole": [(40, 41), (1, 70), (6, 33), (5, 5), (0, 0), (1, 1)],
    "few split": [(30, 130), (1, 290), (5, 130), (0, 0), (6, 40), (1, 3)],
    "all split": [(12, 140), (1, 290), (3, 135), (0, 0), (1, 9)],
    "few alone": [(2, 300), (0, 0), (1, 9)],
}


def planned(case: Batch) -> tuple[Pass, ...]:
    heads = Heads(3, 3, case.query.shape[2], 4)
    requests, blocks = case.block_table.shape
    return plan_passes(len(case.query), requests, heads, 16 * blocks, case.query.device)


@pytest.mark.parametrize("kind", STEPS)
def test_steps_of_several_lengths(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever lies in new memory; tokens of no request get zeros."""
    processors = {"prompts whole": 1, "few split": 30, "all split": 200, "few alone": 130}[kind]
    monkeypatch.setattr(tuning, "processor_count", lambda _: processors)
    real_empty = torch.Tensor.new_empty

    def full_of_garbage(like: torch.Tensor, *args: object, **kwargs: object) -> torch.Tensor:
        made = real_empty(like, *args, **kwargs)  # type: ignore[arg-type]
        return made.fill_(float("nan") if made.is_floating_point() else 7)

    monkeypatch.setattr(torch.Tensor, "new_empty", full_of_garbage)
    narrow = "scaled int8" if kind == "all split" else None
    case = batch(STEPS[kind], size=16, narrow=narrow)
    num_tokens = len(case.query)
    case = replace(case, query=torch.cat([case.query, torch.randn(2, 9, 16)]))
    passes = planned(case)
    assert [one.splits > 1 for one in passes] == {
        "prompts whole": [False, False],
        "few split": [False, True],
        "all split": [True, True],
        "few alone": [True],
    }[kind]
    per_head = {"alibi_slopes": torch.rand(9) / 4, "sinks": torch.randn(9)}
    for changed, options in (
        (case, {}),
        (replace(case, sliding_window=33, soft_cap=2.0), per_head),
    ):
        ours, theirs = both(changed, **options)
        assert (ours[num_tokens:] == 0).all()
        torch.testing.assert_close(ours, theirs, rtol=3e-5, atol=2e-5)


# Lengths around those of a split, beside one that takes all splits; and splits of each.
SHORT = {1: 1, 63: 1, 64: 1, 65: 2, 100: 2, 640: 10, 1500: 24}


@pytest.mark.parametrize("kind", ["decode", "drafts", "window", "latents"])
def test_short_requests_have_few_of_many_splits(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request of few keys has no more splits than these fill; the others just say so."""
    monkeypatch.setattr(tuning, "processor_count", lambda _: 200)
    queries = [1] * 7 if kind != "drafts" else [1, 2, 1, 2, 1, 2, 1]
    case = batch(list(zip(queries, SHORT, strict=True)), (4, 1), 32)
    own = torch.tensor(list(SHORT.values()))
    if kind == "window":
        case, own = replace(case, sliding_window=100), own.clamp(max=2)
    if kind == "latents":
        pages = in_pages(case.key_cache, 1000, 8)
        case = replace(case, key_cache=pages, value_cache=pages[..., :24])
    made: list[tuple[torch.Tensor, int]] = []

    def full_of_nan(query: torch.Tensor, size: int, splits: int, owners: int) -> torch.Tensor:
        room = room_for_partials(query, size, splits, owners).fill_(float("nan"))
        made.append((room, splits))
        return room

    for module in (attention, latent_attention):
        monkeypatch.setattr(module, "room_for_partials", full_of_nan)
    ours, theirs = both(case)
    torch.testing.assert_close(ours, theirs, rtol=3e-5, atol=2e-5)
    room, splits = made[-1]
    assert splits == 24 and room.stride(1) % 4 == 0
    if kind == "drafts":  # of places in requests' tiles; the last query sees all keys
        room = room.unflatten(0, (len(own), -1))[range(len(own)), [n - 1 for n in queries]]
    size = ours.shape[2]
    sums, largest, total, _ = room.split(
        [splits * size, splits, splits, room.shape[2] - splits * (size + 2)], -1
    )
    has_split = (torch.arange(splits) < own[:, None])[:, None].expand(-1, 4, -1)
    assert torch.equal(largest > float("-inf"), has_split) and not largest.isnan().any()
    for part in (total, *sums.unflatten(-1, (splits, size)).unbind(-1)):
        assert torch.equal(~part.isnan(), has_split)


def test_e4m3_by_instruction_gives_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    @triton.jit
    def decode_kernel(to_ptr, from_ptr, FORMAT: tl.constexpr):  # type: ignore[no-untyped-def]
        places = tl.arange(0, 256)
        tl.store(to_ptr + places, quantize.decode(tl.load(from_ptr + places), FORMAT))

    codes = torch.arange(256, dtype=torch.uint8)
    cases = [batch([(9, 40), (1, 70)], size=24, narrow=kind) for kind in ("e4m3", "scaled e4m3")]
    numbers, attended, formats = [], [], []
    for has_float8 in (False, True):
        monkeypatch.setattr(tuning, "has_float8", lambda _, found=has_float8: found)
        cache = codes.view(torch.float8_e4m3fn).view(1, 1, 2, 128)
        formats.append(quantize.stored_numbers(cache, cache, 128)[2])
        numbers.append(torch.empty(256, dtype=torch.float16))
        decode_kernel[(1,)](numbers[-1], codes, formats[-1])
        attended.append([both(case)[0] for case in cases])
        keys = torch.randn(5, 3, 24)
        caches = [torch.zeros(4, 3, 16, 24).to(NARROW["e4m3"][0]) for _ in range(2)]
        for module, written in zip((ops, reference), caches, strict=True):
            module.reshape_and_cache(
                keys, keys, written, written, torch.tensor([3, -1, 40, 17, 16])
            )
        assert torch.equal(*(written.view(torch.uint8) for written in caches))
    assert formats[0] != formats[1]
    expected = cache.flatten().half()
    by_bits, by_instruction = numbers
    torch.testing.assert_close(by_bits, expected, rtol=0, atol=0, equal_nan=True)
    # The interpreter takes the instruction's NaN for a number.
    is_number = ~expected.isnan()
    assert torch.equal(by_instruction[is_number], expected[is_number]) and is_number.sum() == 254
    assert all(torch.equal(*pair) for pair in zip(*attended, strict=True))


def test_passes_of_steps() -> None:
    case = batch([(40, 40)], size=16)
    assert [one.fewest for one in planned(case)] == [0]
    assert [one.is_decode for one in planned(batch([(1, 9)] * 3, size=16))] == [True]
    mixed = batch([(40, 40), (1, 9)], size=16)
    many, few = planned(mixed)
    # Each request is of exactly one pass: decode's tile has 16 rows, so 5 queries of 3 heads.
    assert many.fewest == few.tiling.block_q + 1 == 6 and few.by_request
    tuning.fix_cuts(True)
    try:
        assert [one.fewest for one in planned(mixed)] == [0]
    finally:
        tuning.fix_cuts(False)


@pytest.mark.parametrize("lens", [[(9, 340), (1, 7), (70, 70)], [(1, 600), (1, 3)]])
@pytest.mark.parametrize("block_size", [64, 128])
def test_tiles_read_by_descriptor(
    lens: list[tuple[int, int]], block_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They give the bits of pointers, in blocks that lie within pages."""
    case = batch(lens, (4, 2), 64, block_size, torch.float16)
    caches = [in_pages(cache, 1000, 8) for cache in (case.key_cache, case.value_cache)]
    case = replace(case, key_cache=caches[0], value_cache=caches[1])
    by_pointer, theirs = both(case)
    real, made = tuning.attention_tile, list[object]()
    monkeypatch.setattr(
        tuning, "attention_tile", lambda *work: replace(real(*work), descriptor_stages=2)
    )
    monkeypatch.setattr(
        attention, "tile_rows", lambda *told: made.append(tile_rows(*told)) or made[-1]
    )
    ours = both(case)[0]
    assert made and None not in made
    assert torch.equal(ours, by_pointer)
    torch.testing.assert_close(ours, theirs, rtol=4e-3, atol=2e-3)
    made.clear()
    for other in (replace(case, sliding_window=40), batch(lens, (4, 2), 64, 16, torch.float16)):
        torch.testing.assert_close(*both(other), rtol=4e-3, atol=2e-3)
    assert made and not any(made)
