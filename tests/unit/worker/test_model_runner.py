"""Scheduling never changes tokens: any chunks, order, company or preemption gives the same.

All of it for the runner that computes where it stands, and for the one that gives steps out to a
device, eagerly, by graphs of decode steps and by graphs of longer ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.worker.stepping import VOCAB, Running, Stepper
from vllm_lite.core.step import SchedulerOutput
from vllm_lite.worker import prompt_logprobs as scoring
from vllm_lite.worker.graph_sampler import GraphSampler
from vllm_lite.worker.graph_shapes import GraphShape

PROMPTS = {
    "a": [3],
    "b": [5, 9, 11, 40, 2, 8, 8, 1],
    "c": list(range(30, 67)),
    "d": [99, 98, 97, 96, 95, 94, 93],
}
PARAMS: dict[str, dict[str, Any]] = {
    "a": {},
    "b": {"temperature": 1.0, "seed": 5, "top_p": 0.9},
    "c": {"repetition_penalty": 1.3, "frequency_penalty": 0.5, "logprobs": 2},
    "d": {"temperature": 0.8, "seed": 6, "top_k": 30, "bad_words_token_ids": [[4], [7, 8]]},
}


def started(names: str = "abcd", **options: Any) -> Stepper:
    """A runner with some of the requests waiting."""
    stepper = Stepper(**options)
    for name in names:
        stepper.add(name, PROMPTS[name], **PARAMS[name])
    return stepper


def outputs(stepper: Stepper) -> dict[str, list[int]]:
    return {name: request.output for name, request in stepper.requests.items()}


LONGER = (GraphShape(4, 2, 128), GraphShape(16, 3, 24), GraphShape(64, 4, 128))
RUNNERS: dict[str, Any] = {"host": (None, (), 0), "device": ((), (), 0)}
RUNNERS |= {"graphs": ((1, 3), (), 3), "all": ((1, 3), LONGER, 2)}


@pytest.fixture(scope="module", params=RUNNERS.values(), ids=RUNNERS)
def graphed(request: pytest.FixtureRequest) -> Iterator[None]:
    """Which runner the steppers of a test drive."""
    with pytest.MonkeyPatch.context() as patched:
        sizes, longer, most_sampled = request.param
        patched.setattr(Stepper, "graph_sizes", sizes)
        patched.setattr(Stepper, "longer", longer)
        patched.setattr(GraphSampler, "most_rows", most_sampled)
        yield


pytestmark = pytest.mark.usefixtures("graphed")


@pytest.fixture(scope="module")
def expected() -> dict[str, list[int]]:
    """Each request alone, its prompt in one step, on the host."""
    found = {}
    for name in PROMPTS:
        stepper = started(name, on_host=True)
        stepper.generate(12, chunk=1000)
        found |= outputs(stepper)
    assert len({tuple(tokens) for tokens in found.values()}) == 4
    return found


@pytest.mark.parametrize("chunk", [1, 3, 16, 1000])
@pytest.mark.parametrize("block_size", [8, 16])
@pytest.mark.parametrize("names", ["abcd", "dcba"])
def test_chunks_and_company_change_nothing(
    expected: dict[str, list[int]], chunk: int, block_size: int, names: str
) -> None:
    stepper = started(names, block_size=block_size)
    stepper.generate(12, chunk)
    assert outputs(stepper) == expected


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_any_schedule_gives_the_same_tokens(expected: dict[str, list[int]], seed: int) -> None:
    chance, stepper = Random(seed), started()
    while open_ones := [n for n, r in stepper.requests.items() if len(r.output) < 12]:
        known = [n for n in open_ones if stepper.requests[n].is_known]
        if known and chance.random() < 0.1:
            stepper.preempt(chance.choice(known))
        counts = {}
        for name in chance.sample(open_ones, chance.randint(1, len(open_ones))):
            request = stepper.requests[name]
            left = request.num_tokens - request.num_computed
            counts[name] = chance.randint(1, left)
        stepper.step(counts)
    assert outputs(stepper) == expected


def test_slots_and_blocks_serve_the_next_request_clean(expected: dict[str, list[int]]) -> None:
    stepper = Stepper(num_blocks=12, max_num_seqs=1, max_num_batched_tokens=64)
    for name in "cbadcb":
        stepper.add(name, PROMPTS[name], **PARAMS[name])
        stepper.generate(12, chunk=10)
        assert outputs(stepper) == {name: expected[name]}
        stepper.finish(name)


def prompt_logprobs(**options: Any) -> tuple[Stepper, Running]:
    stepper = Stepper()
    request = stepper.add("c", PROMPTS["c"], prompt_logprobs=3, **options)
    stepper.add("b", PROMPTS["b"])
    return stepper, request


@pytest.mark.parametrize("chunk", [1, 5, 36, 37, 1000])
def test_prompt_logprobs_cover_the_prompt_once_whatever_the_chunks(chunk: int) -> None:
    stepper, request = prompt_logprobs()
    stepper.generate(3, chunk)
    assert [entry.token_ids[0] for entry in request.prompt_logprobs] == PROMPTS["c"][1:]
    assert all(len(entry.token_ids) == 4 for entry in request.prompt_logprobs)
    whole, reference = prompt_logprobs()
    whole.generate(1, 1000)
    for mine, wanted in zip(request.prompt_logprobs, reference.prompt_logprobs, strict=True):
        assert mine.token_ids == wanted.token_ids and mine.rank == wanted.rank
        assert mine.logprobs == pytest.approx(wanted.logprobs, abs=1e-4)


def test_prompt_logits_come_in_bounded_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scoring, "MAX_PROMPT_LOGIT_ELEMENTS", 5 * VOCAB)
    stepper, request = prompt_logprobs()
    stepper.generate(1, 1000)
    assert stepper.model.most_logit_rows == 5
    assert len(request.prompt_logprobs) == len(PROMPTS["c"]) - 1


def test_prompt_logprobs_are_not_repeated_once_there_are_outputs() -> None:
    stepper, request = prompt_logprobs()
    stepper.generate(2, 1000)
    stepper.preempt("c")
    stepper.generate(4, 1000)
    assert len(request.prompt_logprobs) == len(PROMPTS["c"]) - 1


def test_only_positions_that_sample_get_logits() -> None:
    stepper = started()
    stepper.step({"a": 1, "b": 3, "c": 20})
    assert stepper.model.most_logit_rows == 1


def test_logprobs_come_with_their_token() -> None:
    stepper = started("ac")
    stepper.generate(4, 1000)
    request = stepper.requests["c"]
    assert [entry.token_ids[0] for entry in request.logprobs] == request.output
    assert stepper.requests["a"].logprobs == []


def test_logits_that_are_not_numbers_fail_their_own_request(
    expected: dict[str, list[int]],
) -> None:
    stepper = started()
    stepper.model.poison = PROMPTS["d"][-1]
    output = stepper.step({name: len(PROMPTS[name]) for name in PROMPTS})
    assert list(output.errors) == ["d"] and "d" not in output.sampled_token_ids
    assert "logits" in output.errors["d"]
    stepper.model.poison = None
    stepper.finish("d")
    stepper.generate(12, 1000)
    assert outputs(stepper) == {name: expected[name] for name in "abc"}


def test_a_request_may_fill_the_context_to_its_last_token() -> None:
    stepper = Stepper(max_model_len=24)
    request = stepper.add("x", list(range(20)))
    stepper.generate(5, 1000)
    assert len(request.output) == 5


def test_a_step_without_requests_only_lets_go() -> None:
    stepper = started("a")
    stepper.step({"a": 1})
    empty = SchedulerOutput([], {}, {}, {}, 0, ["a", "never met"], [])
    assert stepper.submit(empty).get().sampled_token_ids == {}
    assert len(stepper.requests_of_runner) == 0


def test_a_failed_step_leaves_the_other_requests_as_they_were(
    expected: dict[str, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    stepper = started("ab")
    stepper.generate(5, 1000)
    stepper.add("c", PROMPTS["c"], **PARAMS["c"])
    with monkeypatch.context() as patched:
        patched.setattr(stepper.runner, "_forward", lambda *_: torch.empty(0)[1])
        with pytest.raises(IndexError):
            stepper.step({"c": 5})
    stepper.finish("c")
    stepper.generate(12, 1000)
    assert outputs(stepper) == {name: expected[name] for name in "ab"}
