"""Attention with caches inside other memory, values of another size, slopes and sinks.

Results equal the reference, and no scheduling decision changes a bit.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from tests.kernels.test_attention import MIXED, Batch, batch
from tests.kernels.test_fusion import step_of
from vllm_lite.kernels.cpu import ops as cpu
from vllm_lite.kernels.cpu.program import StepTensors, record_step
from vllm_lite.kernels.reference.ops import Ops as reference

DTYPES = [torch.float32, torch.bfloat16]
TOLERANCE = {torch.float32: 3e-5, torch.bfloat16: 1.6e-2}


def attend(case: Batch, ops: object = cpu, **options: Tensor) -> Tensor:
    return ops.paged_attention(  # type: ignore[attr-defined, no-any-return]
        case.query,
        case.key_cache,
        case.value_cache,
        case.block_table,
        case.query_start_loc,
        case.seq_lens,
        case.query.shape[-1] ** -0.5,
        case.sliding_window,
        case.soft_cap,
        **options,
    )


def check(case: Batch, **options: Tensor) -> None:
    expected, tolerance = attend(case, reference, **options), TOLERANCE[case.query.dtype]
    actual = attend(case, **options)
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance / 2)


def check_chunks(whole: Batch, **options: Tensor) -> None:
    """One prompt gives the same bits in chunks."""
    expected = attend(whole, **options)
    for begin, end in pairwise([0, 1, 65, 500, 512, *range(len(expected) - 3, len(expected) + 1)]):
        chunk = replace(
            whole,
            query=whole.query[begin:end],
            query_start_loc=torch.tensor([0, end - begin], dtype=torch.int32),
            seq_lens=torch.tensor([end], dtype=torch.int32),
        )
        assert torch.equal(attend(chunk, **options), expected[begin:end])


def in_pages(cache: Tensor, more: int, start: int) -> Tensor:
    """The same cache, each block of it somewhere in a larger page."""
    size = cache[0].numel()
    pages = torch.zeros(len(cache), size + more, dtype=cache.dtype)
    pages.view(torch.uint8).fill_(0xFF)
    part = pages[:, start : start + size].view(cache.shape)
    part.copy_(cache)
    return part


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("size", "narrow"), [(64, None), (40, None), (64, "e4m3"), (40, "scaled int8")]
)
def test_a_cache_may_be_a_part_of_pages(dtype: torch.dtype, size: int, narrow: str | None) -> None:
    case = batch(MIXED, size=size, dtype=dtype, narrow=narrow)
    for more, start in ((96, 96), (1000, 7)):
        caches = [in_pages(cache, more, start) for cache in (case.key_cache, case.value_cache)]
        paged = replace(case, key_cache=caches[0], value_cache=caches[1])
        assert torch.equal(attend(paged), attend(case))
        key, value = torch.randn(2, 5, 3, size).to(dtype)
        slots = torch.tensor([3, -1, 40, 17, 16])
        before = [cache.view(torch.uint8).clone() for cache in caches]
        pages = [cache.as_strided((len(cache), more), (cache.stride(0), 1), 0) for cache in caches]
        outside = [page[:, :start].view(torch.uint8).clone() for page in pages]
        plain = [case.key_cache.clone(), case.value_cache.clone()]
        cpu.reshape_and_cache(key, value, *plain, slots)
        cpu.reshape_and_cache(key, value, *caches, slots)
        for ours, theirs, old, page, rest in zip(
            caches, plain, before, pages, outside, strict=True
        ):
            assert torch.equal(ours.view(torch.uint8), theirs.view(torch.uint8))
            assert not torch.equal(ours.view(torch.uint8), old)
            assert torch.equal(page[:, :start].view(torch.uint8), rest)
    # Each head's values after its keys.
    key_cache, value_cache = torch.cat((case.key_cache, case.value_cache), 2).chunk(2, 2)
    assert torch.equal(
        attend(replace(case, key_cache=key_cache, value_cache=value_cache)), attend(case)
    )
    cpu.reshape_and_cache(key, value, key_cache, value_cache, slots)
    for ours, theirs in zip((key_cache, value_cache), plain, strict=True):
        assert torch.equal(ours.view(torch.uint8), theirs.view(torch.uint8))


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("options", ["alibi", "sinks", "both"])
def test_slopes_and_sinks(options: str, dtype: torch.dtype) -> None:
    chosen = {}
    if options != "sinks":
        chosen["alibi_slopes"] = torch.rand(9) / 4
    if options != "alibi":
        chosen["sinks"] = torch.randn(9) * 3
        chosen["sinks"][:3] = torch.tensor([-torch.inf, 200.0, -200.0])
    for size, narrow in ((64, None), (40, "scaled int8")):
        case = batch(MIXED, size=size, dtype=dtype, narrow=narrow)
        check(case, **chosen)
        check(replace(case, sliding_window=70, soft_cap=20.0), **chosen)
        check_chunks(batch([(700, 700)], size=size, dtype=dtype, narrow=narrow), **chosen)


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sizes", [(64, 32), (40, 72), (96, 64), (576, 512), (16, 1)])
def test_values_of_another_size(sizes: tuple[int, int], dtype: torch.dtype) -> None:
    key_size, value_size = sizes
    for lens in (MIXED, [(700, 700)]):
        keyed = batch(lens, (4, 2), key_size, dtype=dtype)
        valued = batch(lens, (4, 2), value_size, dtype=dtype)
        shape = (*keyed.key_cache.shape[:-1], value_size)
        case = replace(keyed, value_cache=valued.value_cache[: shape[0]].view(shape))
        assert attend(case).shape[-1] == value_size
        check(case)
        if len(lens) == 1:
            check_chunks(case)
        if value_size < key_size:
            # Latents: values are the first numbers of keys, in the same memory.
            part = keyed.key_cache[..., :value_size]
            latent = replace(keyed, value_cache=part)
            assert torch.equal(attend(latent), attend(replace(keyed, value_cache=part.clone())))
    latents = torch.randn(5, 2, key_size).to(dtype)
    if value_size < key_size:
        keys = torch.zeros(4, 2, 16, key_size, dtype=dtype)
        written = latents[..., :value_size]
        cpu.reshape_and_cache(latents, written, keys, keys[..., :value_size], torch.arange(5))
        assert torch.equal(keys[0, :, :5].transpose(0, 1), latents)
        assert not keys[1:].any()


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("has_sinks", [False, True])
def test_log_sum_exp_output(has_sinks: bool, dtype: torch.dtype) -> None:
    case = batch([(2, 9), (1, 700), (40, 600)], dtype=dtype)
    padded = replace(case, query=torch.cat([case.query, case.query[:4]]))
    options = {"sinks": torch.randn(9)} if has_sinks else {}
    ours, theirs = torch.zeros(2, len(padded.query), 9)
    out = attend(padded, lse=ours, **options)
    assert torch.equal(out, attend(padded, **options))
    attend(padded, reference, lse=theirs, **options)
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4 if dtype == DTYPES[0] else 5e-3)
    assert (ours[-4:] == -torch.inf).all()


def test_rare_forms_can_be_recorded() -> None:
    keys = torch.zeros(12, 1, 16, 24)
    slopes, sinks, table = torch.rand(3), torch.randn(3), torch.randn(50, 72)

    def forward(step: StepTensors) -> tuple[Tensor, Tensor]:
        latents = cpu.embedding(step["input_ids"], table)
        query = latents.view(-1, 3, 24)
        key = query[:, :1]
        value_cache = keys[..., :16]
        cpu.reshape_and_cache(key, key[..., :16], keys, value_cache, step["slot_mapping"])
        lse = torch.empty(len(latents), 3)
        where = (step["block_table"], step["query_start_loc"], step["seq_lens"])
        mixed = cpu.paged_attention(
            query, keys, value_cache, *where, 0.2, alibi_slopes=slopes, sinks=sinks, lse=lse
        )
        return mixed.view(-1, 48), lse

    with torch.inference_mode():
        program = record_step(forward, step_of(3), 100)
        for step in (step_of(40, 3), step_of(1)):
            want = forward(step)
            assert all(map(torch.equal, program.run(step), want))


def test_what_does_not_fit_is_refused() -> None:
    case = batch([(2, 40)], heads=(4, 2))
    for wrong in (torch.ones(3), torch.ones(4).double()):
        with pytest.raises(ValueError, match=r"sinks must be dense float32 \[4\]"):
            attend(case, sinks=wrong)
    with pytest.raises(ValueError, match=r"lse must be dense float32 \[2, 4\]"):
        attend(case, lse=torch.ones(4, 2))
    with pytest.raises(ValueError, match="rows of a cache must be dense"):
        attend(replace(case, value_cache=case.value_cache.repeat_interleave(2, -1)[..., ::2]))
    for cache in (case.value_cache[1:], case.value_cache.bfloat16()):
        with pytest.raises(ValueError, match="do not fit together"):
            attend(replace(case, value_cache=cache))
