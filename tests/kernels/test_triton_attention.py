"""Attention with slopes, sinks and caches inside other memory, in Triton's interpreter."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

pytest.importorskip("triton")

from tests.kernels.test_attention import Batch, batch
from tests.kernels.test_attention_forms import in_pages
from vllm_lite.kernels.gpu import tuning
from vllm_lite.kernels.gpu.triton import ops
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
        cases = [batch([(1, 600), (1, 3)], size=16), batch([(5, 530)], size=16)]
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
    case = batch([(1, 600), (1, 600), (0, 0)], size=16)
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
    for lens in ([(1, 600), (1, 3)], [(9, 40), (1, 7), (3, 70), (0, 0)]):
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
    for lens in ([(1, 600), (1, 3)], [(9, 40), (1, 7), (3, 70), (0, 0)]):
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
