"""Sampling and log-probabilities equal the reference, for any rows in any batch."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch

from vllm_lite import _cpu
from vllm_lite.kernels.cpu import ops as cpu
from vllm_lite.kernels.reference.ops import Ops as reference
from vllm_lite.kernels.reference.sampling import filter_weights, token_weights

INF = float("inf")


class Choices(NamedTuple):
    """Sampling parameters of each row."""

    inverse_temperature: torch.Tensor
    min_p: torch.Tensor
    top_k: torch.Tensor
    top_p: torch.Tensor
    chances: torch.Tensor

    def of(self, rows: slice) -> Choices:
        return Choices(*(values[rows] for values in self))


def choices(*rows: tuple[float, float, int, float], chance: float | None = None) -> Choices:
    """(temperature, min_p, top_k, top_p) of each row; the chances are random unless given."""
    temperature, min_p, top_k, top_p = zip(*rows, strict=True)
    drawn = torch.rand(len(rows), dtype=torch.float64)
    return Choices(
        torch.tensor([1 / t if t else 0.0 for t in temperature]),
        torch.tensor(min_p),
        torch.tensor(top_k),
        torch.tensor(top_p),
        drawn if chance is None else drawn.fill_(chance),
    )


def random_choices(count: int, vocab_size: int) -> Choices:
    """Every combination of filters that are off, mild, harsh and absurd."""

    def pick(*values: float) -> torch.Tensor:
        return torch.tensor(values)[torch.randint(len(values), (count,))]

    return Choices(
        1 / pick(0.01, 0.3, 1.0, 1.0, 2.0, INF),
        pick(0.0, 0.0, 0.02, 0.3, 1.0),
        pick(0, 0, 1, 3, 40, vocab_size // 3, vocab_size - 1, vocab_size, 2**31).long(),
        pick(1.0, 1.0, 0.99, 0.9, 0.5, 1e-6),
        torch.rand(count, dtype=torch.float64),
    )


def assert_same(logits: torch.Tensor, how: Choices) -> None:
    before = logits.clone()
    tokens, largest = cpu.sample_tokens(logits, *how)
    wanted, wanted_largest = reference.sample_tokens(logits, *how)
    assert torch.equal(largest, wanted_largest)
    assert tokens.tolist() == wanted.tolist()
    assert torch.equal(logits, before)


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("vocab_size", [1, 5, 63, 64, 65, 1000, 5003, 49_152])
@pytest.mark.parametrize("scale", [0.01, 1.0, 8.0])
def test_sampled_tokens_match_the_reference(vocab_size: int, scale: float) -> None:
    count = 150 if vocab_size < 2000 else 40
    logits = (torch.randn(count, vocab_size + 3) * scale)[:, :vocab_size]
    assert_same(logits, random_choices(count, vocab_size))


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("vocab_size", [1, 63, 64, 65, 1000, 5003])
def test_ties_of_the_largest_logit_go_to_the_first(vocab_size: int) -> None:
    logits = torch.randint(-3, 3, (200, vocab_size)).float()
    tokens, largest = cpu.greedy_tokens(logits)
    assert torch.equal(largest, logits.amax(-1))
    assert tokens.tolist() == [row.index(max(row)) for row in logits.tolist()]
    greedy = choices(*[(0.0, 0.5, 3, 0.5)] * 200)
    assert torch.equal(cpu.sample_tokens(logits, *greedy)[0], tokens)


@pytest.mark.usefixtures("isa")
def test_ties_are_kept_or_dropped_together() -> None:
    # Many equal logits, on both sides of every threshold.
    logits = torch.randint(0, 4, (300, 700)).float()
    assert_same(logits, random_choices(300, 700))
    weights = token_weights(logits, torch.ones(300))
    filter_weights(weights, torch.zeros(300), torch.full((300,), 2), torch.ones(300))
    how = choices(*[(1.0, 0.0, 2, 1.0)] * 300)
    drawn = cpu.sample_tokens(logits, *how)[0]
    assert (weights.gather(1, drawn[:, None]) > 0).all()
    assert len(set(drawn.tolist())) > 100


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("bad", [float("nan"), INF, -INF])
@pytest.mark.parametrize("place", [0, 63, 64, 129])
def test_a_row_without_tokens_is_reported_and_affects_no_other(bad: float, place: int) -> None:
    logits = torch.randn(5, 130)
    how = choices(*[(0.0, 0.0, 0, 1.0), (1.0, 0.1, 7, 0.9)] * 2, (1.0, 0.0, 0, 1.0))
    alone = [cpu.sample_tokens(logits[i : i + 1], *how.of(slice(i, i + 1))) for i in range(5)]
    for row in (1, 2):
        logits[row, place] = bad
        if bad == -INF:
            logits[row] = bad
    tokens, largest = cpu.sample_tokens(logits, *how)
    assert largest.isfinite().tolist() == [True, False, False, True, True]
    assert tokens.min() >= 0 and tokens.max() < 130
    for row in (0, 3, 4):
        assert tokens[row] == alone[row][0][0] and largest[row] == alone[row][1][0]
    assert torch.equal(cpu.greedy_tokens(logits)[1].isfinite(), largest.isfinite())


@pytest.mark.usefixtures("isa")
def test_one_nan_among_infinities_is_seen() -> None:
    logits = torch.full((2, 300), -INF)
    logits[0, 200] = logits[0, 7] = 1.0
    logits[1] = logits[0]
    logits[1, 100] = float("nan")
    assert cpu.greedy_tokens(logits)[0][0] == 7
    assert cpu.greedy_tokens(logits)[1].isfinite().tolist() == [True, False]


@pytest.mark.usefixtures("isa")
def test_huge_logits_stay_finite() -> None:
    logits = torch.full((2, 200), 3e38)
    logits[1] = -3e38
    assert cpu.greedy_tokens(logits)[1].isfinite().all()
    assert_same(logits, choices(*[(1.0, 0.5, 100, 0.9)] * 2))


@pytest.mark.usefixtures("isa")
def test_banned_tokens_are_never_sampled() -> None:
    logits = torch.randn(400, 500)
    allowed = torch.rand(400, 500) < 0.01
    allowed[torch.arange(400), torch.randint(500, (400,))] = True
    logits.masked_fill_(~allowed, -INF)
    tokens = cpu.sample_tokens(logits, *random_choices(400, 500))[0]
    assert allowed.gather(1, tokens[:, None]).all()


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("chance", [0.0, 1 - 2**-53])
def test_extreme_chances_give_tokens_with_weight(chance: float) -> None:
    logits = torch.full((1, 1000), -INF)
    logits[0, 300] = logits[0, 700] = 0.0
    for how in ((1.0, 0.0, 0, 1.0), (1.0, 0.5, 2, 0.9)):
        drawn = int(cpu.sample_tokens(logits, *choices(how, chance=chance))[0])
        assert drawn == (300 if chance == 0 else 700)


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("vocab_size", [1, 64, 300, 1201])
def test_sampling_inverts_the_cumulative_distribution(vocab_size: int) -> None:
    logits = torch.randn(500, vocab_size) * 2
    logits[torch.rand(500, vocab_size) < 0.7] = -INF
    logits[torch.arange(500), torch.randint(vocab_size, (500,))] = 1.0
    how = choices(*[(1.0, 0.0, 0, 1.0)] * 500)
    drawn = cpu.sample_tokens(logits, *how)[0][:, None]
    cumulative = logits.double().softmax(-1).cumsum(-1)
    own = logits.double().softmax(-1).gather(1, drawn)[:, 0]
    reached, slack = cumulative.gather(1, drawn)[:, 0], 1e-6
    assert (own > 0).all() and (reached >= how.chances - slack).all()
    assert (reached - own <= how.chances + slack).all()


@pytest.mark.usefixtures("isa", "threads")
def test_a_token_depends_on_its_row_alone() -> None:
    logits = torch.randn(64, 5003) * 3
    how = random_choices(64, 5003)
    together = cpu.sample_tokens(logits, *how)[0]
    order = torch.randperm(64)
    shuffled = Choices(*(values[order] for values in how))
    assert torch.equal(cpu.sample_tokens(logits[order], *shuffled)[0], together[order])
    _cpu.set_num_threads(1)
    alone = [cpu.sample_tokens(logits[i : i + 1], *how.of(slice(i, i + 1)))[0] for i in range(64)]
    assert torch.equal(torch.cat(alone), together)


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("vocab_size", [1, 64, 65, 1000, 5003])
@pytest.mark.parametrize("num_top", [0, 1, 20, 5003])
@pytest.mark.parametrize("is_normalized", [True, False])
def test_logprobs_match_the_reference(vocab_size: int, num_top: int, is_normalized: bool) -> None:
    logits = torch.randn(6, vocab_size + 1)[:, :vocab_size] * 4
    # Ties and banned tokens come in the vocabulary's order.
    logits[1] = logits[1].round()
    logits[2, vocab_size // 2 :] = -INF
    logits[2, 0] = 1.0
    rows = torch.tensor([5, 1, 2, 2, 0])
    tokens = torch.randint(vocab_size, (5,))
    args = logits, rows, tokens, min(num_top, vocab_size), is_normalized
    values, ids, ranks = cpu.token_logprobs(*args)
    wanted, wanted_ids, wanted_ranks = reference.token_logprobs(*args)
    assert torch.equal(ids, wanted_ids) and torch.equal(ranks, wanted_ranks)
    torch.testing.assert_close(values, wanted, atol=2e-6, rtol=1e-6)


@pytest.mark.usefixtures("isa")
def test_logprobs_of_a_nan_row_have_valid_ids() -> None:
    for bad in (float("nan"), INF, -INF):
        logits = torch.full((1, 100), bad)
        ids = cpu.token_logprobs(logits, torch.tensor([0]), torch.tensor([99]), 100)[1]
        assert ids.min() >= 0 and ids.max() < 100


@pytest.mark.usefixtures("isa")
def test_no_rows() -> None:
    empty = torch.zeros(0, dtype=torch.int64)
    assert cpu.greedy_tokens(torch.zeros(0, 7))[0].shape == (0,)
    assert cpu.token_logprobs(torch.zeros(3, 7), empty, empty, 2)[1].shape == (0, 3)


def test_what_does_not_fit_is_refused() -> None:
    logits, how = torch.zeros(2, 64), choices((1.0, 0.0, 0, 1.0), (1.0, 0.0, 0, 1.0))
    index = torch.tensor([0])
    with pytest.raises(ValueError, match="float32 logits"):
        cpu.greedy_tokens(logits.double())
    with pytest.raises(ValueError, match="dense rows"):
        cpu.greedy_tokens(torch.zeros(64, 2).T)
    with pytest.raises(ValueError, match=r"float32 tensor \[2\]"):
        cpu.sample_tokens(logits, *how.of(slice(1)))
    with pytest.raises(ValueError, match="float64"):
        cpu.sample_tokens(logits, *how._replace(chances=torch.zeros(2)))
    with pytest.raises(ValueError, match="65 of 64"):
        cpu.token_logprobs(logits, index, index, 65)
    with pytest.raises(IndexError):
        cpu.token_logprobs(logits, torch.tensor([2]), index, 1)
    with pytest.raises(IndexError):
        cpu.token_logprobs(logits, index, torch.tensor([-1]), 1)
