"""Beam search finds what a look at every continuation finds, and ends no later than it must."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_lite.beam_search import Beam, BeamSearch, beam_output
from vllm_lite.beam_search_params import BeamSearchParams
from vllm_lite.errors import RequestError
from vllm_lite.outputs import Logprob, PositionLogprobs
from vllm_lite.sampling_params import SamplingParams

EOS, STOP, VOCAB = 0, 1, 4
PROMPT = [9, 9]


def position(seed: int, tokens: list[int]) -> PositionLogprobs:
    """A tiny model's log-probabilities of the token after `tokens`."""
    weights = [random.Random(f"{seed}{tokens}{i}").random() + 0.01 for i in range(VOCAB)]
    order = sorted(range(VOCAB), key=lambda i: -weights[i])
    total = math.log(sum(weights))
    return {i: Logprob(math.log(weights[i]) - total, r + 1) for r, i in enumerate(order)}


def searched(seed: int, search: BeamSearch, max_tokens: int = 99) -> tuple[list[Beam], int]:
    """The best continuations, and how many steps it took."""
    steps = 0
    search.begin(PROMPT, max_tokens)
    while prompts := search.prompts():
        search.feed([position(seed, prompt) for prompt in prompts])
        steps += 1
    return search.best(), steps


def continuations(seed: int, length: int) -> Iterator[tuple[tuple[int, ...], float]]:
    """Every continuation and its log-probability."""
    for size in range(1, length + 1):
        for ids in itertools.product(range(VOCAB), repeat=size):
            is_whole = size == length or ids[-1] == EOS
            if EOS in ids[:-1] or not is_whole:
                continue
            steps = (position(seed, [*PROMPT, *ids[:i]])[ids[i]].logprob for i in range(size))
            yield ids, sum(steps)


@pytest.mark.parametrize("penalty", [-1.0, 0.0, 1.0, 2.0])
@pytest.mark.parametrize("seed", range(4))
def test_a_search_as_wide_as_its_tree_finds_the_best(seed: int, penalty: float) -> None:
    params = BeamSearchParams(beam_width=64, max_tokens=3, length_penalty=penalty)
    search = BeamSearch(params, [EOS])
    best, _ = searched(seed, search)
    every = [
        Beam(ids, logprob, (), "stop" if ids[-1] == EOS else "length")
        for ids, logprob in continuations(seed, 3)
    ]
    every.sort(key=search.score, reverse=True)
    assert [beam.token_ids for beam in best] == [beam.token_ids for beam in every[:64]]
    assert [beam.finish_reason for beam in best] == [beam.finish_reason for beam in every[:64]]


@given(
    st.integers(0, 10**6), st.integers(1, 3), st.floats(-2, 3), st.sets(st.integers(0, VOCAB - 1))
)
def test_an_early_end_changes_nothing(
    seed: int, width: int, penalty: float, ends: set[int]
) -> None:
    class Patient(BeamSearch):
        def _can_improve(self) -> bool:
            return True

    params = BeamSearchParams(beam_width=width, max_tokens=8, length_penalty=penalty)
    early, steps = searched(seed, BeamSearch(params, ends))
    late, all_steps = searched(seed, Patient(params, ends))
    assert early == late and early
    assert steps <= all_steps <= 8


def test_a_search_without_width_is_greedy() -> None:
    params = BeamSearchParams(beam_width=1, max_tokens=5, ignore_eos=True)
    ((beam,), _) = searched(3, BeamSearch(params, [EOS]))
    tokens = list(PROMPT)
    for _ in range(5):
        tokens.append(next(iter(position(3, tokens))))
    assert [*PROMPT, *beam.token_ids] == tokens
    assert (beam.finish_reason, beam.stop_reason) == ("length", None)


def test_stop_tokens_end_a_beam_and_are_named() -> None:
    params = BeamSearchParams(beam_width=64, max_tokens=3)
    best, _ = searched(1, BeamSearch(params, [EOS], [STOP]))
    reasons = {beam.token_ids[-1]: (beam.finish_reason, beam.stop_reason) for beam in best}
    assert reasons[EOS] == ("stop", None) and reasons[STOP] == ("stop", STOP)
    assert all(STOP not in beam.token_ids[:-1] for beam in best)


def test_context_length_ends_a_search() -> None:
    params = BeamSearchParams(beam_width=2, max_tokens=50, ignore_eos=True)
    best, steps = searched(1, BeamSearch(params, [EOS]), max_tokens=4)
    assert steps == 4 and all(len(beam.token_ids) == 4 for beam in best)


def test_an_aborted_search_gives_what_there_is() -> None:
    search = BeamSearch(BeamSearchParams(beam_width=2, max_tokens=9), [EOS])
    search.begin(PROMPT, 9)
    search.feed([position(2, PROMPT)])
    search.abort()
    assert search.prompts() == []
    assert "abort" in {beam.finish_reason for beam in search.best()}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"beam_width": 0}, "n"),
        ({"beam_width": 65}, "n"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"length_penalty": math.inf}, "length_penalty"),
    ],
)
def test_a_search_that_makes_no_sense_is_refused(fields: dict[str, float], param: str) -> None:
    with pytest.raises(RequestError) as error:
        BeamSearchParams(**{"beam_width": 2, "max_tokens": 2, **fields})
    assert error.value.param == param


def test_a_width_beyond_the_reported_candidates_is_refused() -> None:
    with pytest.raises(RequestError, match="max-logprobs allows 20") as error:
        BeamSearch(BeamSearchParams(beam_width=11, max_tokens=2), [EOS], max_logprobs=20)
    assert error.value.param == "n"


def test_a_beam_without_a_tokenizer_has_no_text() -> None:
    beam = Beam((3, EOS), -1.0, (), "stop")
    output = beam_output(1, beam, PROMPT, None, SamplingParams())
    assert (output.index, output.text, output.token_ids) == (1, "", [3, EOS])
