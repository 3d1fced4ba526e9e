"""Log-probabilities that a request reports, in each mode."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.unit.sample.rows import Case, sample_once
from vllm_lite.core.step import TokenLogprobs
from vllm_lite.kernels.transfer import pack, unpack
from vllm_lite.sample.logprobs import gather_logprobs
from vllm_lite.sampling_params import SamplingParams


def gathered(logits: torch.Tensor, *args: Any, **options: Any) -> list[TokenLogprobs]:
    """Log-probabilities of each row, which go to the host the way of a GPU's."""
    rows = range(len(logits))
    unread = gather_logprobs(logits, rows, torch.tensor(rows), *args, **options)
    likes = [(tensor.shape, tensor.dtype) for tensor in unread.tensors]
    return unread.read(unpack(pack(unread.tensors), likes))


def test_the_sampled_token_comes_first_then_the_candidates_in_order() -> None:
    logits = torch.randn(4, 5003)
    logprobs = logits.log_softmax(-1)
    tokens = torch.tensor([0, 17, 5002, 4096])
    found = gathered(logits, tokens, [0, 1, 5, 40])
    for row, (entry, count) in enumerate(zip(found, [0, 1, 5, 40], strict=True)):
        top = logprobs[row].topk(count)
        assert entry.token_ids == [tokens[row].item(), *top.indices.tolist()]
        assert entry.logprobs[1:] == pytest.approx(top.values.tolist(), abs=1e-5)
        assert entry.logprobs[0] == pytest.approx(logprobs[row, tokens[row]].item(), abs=1e-5)
        assert entry.rank == 1 + int((logits[row] > logits[row, tokens[row]]).sum())


def test_minus_one_reports_the_whole_vocabulary() -> None:
    found = gathered(torch.randn(1, 9), torch.tensor([4]), [-1])[0]
    assert sorted(found.token_ids[1:]) == list(range(9))


def test_chosen_tokens_are_reported_in_the_order_of_the_request() -> None:
    logits = torch.randn(2, 9)
    chosen, top = gathered(logits, torch.tensor([4, 5]), [[7, 4, 0], 2], is_normalized=False)
    assert chosen.token_ids == [4, 7, 4, 0]
    assert chosen.logprobs == logits[0, [4, 7, 4, 0]].tolist()
    assert len(top.token_ids) == 3


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=0, logit_bias={3: 50.0}, logprobs=4),
        SamplingParams(seed=1, temperature=0.5, logit_bias={3: 50.0}, logprobs=4, top_k=2),
    ],
)
def test_raw_modes_report_the_models_logits(params: SamplingParams) -> None:
    logits = torch.randn(3, 40)
    cases = [Case(SamplingParams()), Case(params), Case(SamplingParams(temperature=0))]
    for mode, wanted in (
        ("raw_logprobs", logits.log_softmax(-1)),
        ("raw_logits", logits),
    ):
        output = sample_once(logits, cases, mode)
        assert list(output.logprobs) == [1] and output.token_ids[1] == 3
        found = output.logprobs[1]
        assert found.token_ids[0] == 3
        assert found.logprobs[0] == pytest.approx(wanted[1, 3].item(), abs=1e-6)
        assert found.token_ids[1:] == wanted[1].topk(4).indices.tolist()


@pytest.mark.parametrize("mates", [[], [SamplingParams(temperature=0)], [SamplingParams(seed=3)]])
def test_processed_modes_report_the_sampled_logits(mates: list[SamplingParams]) -> None:
    logits = torch.randn(1 + len(mates), 40)
    params = SamplingParams(seed=1, temperature=0.5, top_k=2, logit_bias={3: 9.0}, logprobs=3)
    wanted = logits[0].clone()
    wanted[3] += 9.0
    wanted /= 0.5
    wanted[wanted < wanted.topk(2).values[1]] = float("-inf")
    cases = [Case(params), *(Case(mate) for mate in mates)]
    for mode, row in (("processed_logits", wanted), ("processed_logprobs", wanted.log_softmax(0))):
        found = sample_once(logits, cases, mode).logprobs[0]
        assert found.token_ids[1:3] == row.topk(2).indices.tolist()
        assert found.logprobs[1:3] == pytest.approx(row.topk(2).values.tolist(), abs=1e-4)
        assert found.logprobs[3] == float("-inf")
        assert found.token_ids[0] in found.token_ids[1:3]


def test_greedy_rows_are_not_scaled_in_processed_modes() -> None:
    logits = torch.randn(2, 40)
    params = SamplingParams(temperature=0, logprobs=1)
    cases = [Case(params), Case(SamplingParams(temperature=0.3, seed=1, logprobs=1))]
    found = sample_once(logits, cases, "processed_logprobs").logprobs[0]
    wanted = logits[0].log_softmax(0).max().item()
    assert found.logprobs == pytest.approx([wanted, wanted], abs=1e-6)
