"""Logits processors against their definitions, alone and together."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.sample.reference import processed_logits
from tests.unit.sample.rows import EOS, Case, Rows, sample_once
from vllm_lite.sampling_params import SamplingParams

VOCAB = 50
token = st.integers(0, VOCAB - 1)
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "allowed_token_ids": st.lists(token, min_size=1, max_size=20),
    "bad_words_token_ids": st.lists(st.lists(token, min_size=1, max_size=3), max_size=4),
    "min_tokens": st.integers(0, 8),
    "stop_token_ids": st.lists(token, max_size=3),
    "logit_bias": st.dictionaries(token, st.floats(-100, 100, width=32), max_size=6),
    "repetition_penalty": st.floats(0.5, 2),
    "frequency_penalty": st.floats(-2, 2),
    "presence_penalty": st.floats(-2, 2),
}


def effective(logits: torch.Tensor, cases: list[Case]) -> torch.Tensor:
    """The processed logits, as the sampler reports them."""
    wanting = [
        case._replace(params=case.params.clone(logprobs=-1, temperature=0.0)) for case in cases
    ]
    found = sample_once(logits, wanting, "processed_logits").logprobs
    result = torch.empty_like(logits)
    for row, logprobs in found.items():
        result[row, logprobs.token_ids[1:]] = torch.tensor(logprobs.logprobs[1:])
    return result


@st.composite
def case_strategy(draw: st.DrawFn) -> Case:
    names = draw(st.sets(st.sampled_from(sorted(FIELDS))))
    fields = {name: draw(FIELDS[name]) for name in names}
    prompt = draw(st.lists(token, min_size=1, max_size=8))
    output = draw(st.lists(token, max_size=8))
    return Case(SamplingParams(max_tokens=None, **fields), prompt, output)


@settings(max_examples=150, deadline=None)
@given(cases=st.lists(case_strategy(), min_size=1, max_size=5), seed=st.integers(0, 2**31))
def test_processors_match_their_definitions(cases: list[Case], seed: int) -> None:
    logits = torch.randn(len(cases), VOCAB, generator=torch.Generator().manual_seed(seed)) * 4
    found = effective(logits, cases).numpy()
    for row, case in enumerate(cases):
        wanted = processed_logits(
            logits[row].numpy().astype(np.float64),
            case.params,
            list(case.prompt),
            list(case.output),
            EOS,
        )
        np.testing.assert_allclose(found[row], wanted, rtol=1e-4, atol=1e-4)


def test_penalties_follow_the_tokens_as_they_are_generated() -> None:
    rows = Rows(VOCAB)
    rows.put(3, Case(SamplingParams(temperature=0, presence_penalty=1.5, max_tokens=None)))
    logits = torch.zeros(1, VOCAB)
    logits[0, :4] = torch.tensor([4.0, 3.0, 2.9, 2.8])
    chosen = []
    for _ in range(4):
        tokens = rows.sample(logits, [3]).token_ids
        rows.append([3], tokens)
        chosen += tokens
    assert chosen == [0, 1, 2, 3]


def test_ids_beyond_the_vocabulary_change_nothing() -> None:
    params = SamplingParams(
        temperature=0, logit_bias={VOCAB: 5.0}, bad_words_token_ids=[[VOCAB + 3]], min_tokens=2
    )
    logits = torch.randn(1, VOCAB)
    logits[0, 9] = 50
    assert sample_once(logits, [Case(params)]).token_ids == [9]


def test_reused_slot_keeps_nothing_of_its_last_request() -> None:
    rows = Rows(VOCAB)
    logits = torch.randn(1, VOCAB)
    best = int(logits.argmax())
    banning = SamplingParams(
        temperature=0,
        logit_bias={best: -100.0},
        allowed_token_ids=[1],
        frequency_penalty=2.0,
        logprobs=1,
    )
    rows.put(0, Case(banning))
    assert rows.sample(logits, [0]).token_ids == [1]
    rows.states.remove(0)
    rows.put(0, Case(SamplingParams(temperature=0)))
    output = rows.sample(logits, [0])
    assert output.token_ids == [best] and not output.logprobs


@pytest.mark.parametrize("count", [1, 64])
def test_a_penalised_request_may_outgrow_its_first_arrays(count: int) -> None:
    rows = Rows(VOCAB * 20)
    rows.put(0, Case(SamplingParams(temperature=0, presence_penalty=2.0, max_tokens=None)))
    logits = torch.zeros(1, VOCAB * 20)
    seen = []
    for _ in range(count * 3):
        tokens = rows.sample(logits, [0]).token_ids
        rows.append([0], tokens)
        seen += tokens
    assert len(set(seen)) == count * 3
