"""Attention with slopes, sinks and caches inside other memory, in Triton's interpreter."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

pytest.importorskip("triton")

from tests.kernels.test_attention import Batch, batch
from tests.kernels.test_attention_forms import in_pages
from vllm_lite.kernels.gpu.triton import ops, tuning
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
