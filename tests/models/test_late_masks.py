"""Grammars where steps run ahead: masks come while the forward pass is under way.

The same tokens as where each step waits, and a constrained request is in every step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.models.byte_model import save_byte_model
from tests.models.test_async_scheduling import EAGER, GRAPHS, on_stand_in
from tests.models.test_constrained import FORCED, FREE, OBJECT, constrained, run, start
from tests.unit.structured_output.shared_pools import shared_pools
from vllm_lite import SamplingParams
from vllm_lite.config.vllm import VllmConfig
from vllm_lite.core.pending import PendingOutput
from vllm_lite.core.step import LateMasks, SchedulerOutput
from vllm_lite.executor import uniproc
from vllm_lite.worker.interface import StepWorker
from vllm_lite.worker.worker import Worker

THINKING = SamplingParams(max_tokens=30, seed=1, thinking_token_budget=5, temperature=1.0)
PARAMS = [
    *FREE,
    *FORCED,
    *(constrained(i, json=OBJECT, n=2) for i in range(2)),
    constrained(3, regex="[ab]{3,60}", min_tokens=9, logit_bias={98: 1.5}),
    THINKING,
]
TIGHT = {"num_gpu_blocks_override": 40, "max_num_batched_tokens": 16}


@pytest.fixture(scope="module", autouse=True)
def pools() -> Iterator[None]:
    with shared_pools():
        yield


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_byte_model(tmp_path_factory.mktemp("bytes"))


class Recorder(uniproc.UniprocExecutor):
    """Keeps the requests of each step, and whether its masks came late."""

    steps: list[tuple[set[str], bool]]

    def submit(self, step: SchedulerOutput, masks: LateMasks | None = None) -> PendingOutput:
        assert masks is None or step.token_masks is None
        self.steps.append((set(step.num_scheduled_tokens), masks is not None))
        return super().submit(step, masks)


def told(
    model: Path, params: list[SamplingParams], **options: Any
) -> list[tuple[list[int], str | None, Any]]:
    settings = {"async_scheduling": True, "num_gpu_blocks_override": 160} | options
    with start(model, **settings) as llm:
        outputs = run(llm, params, "ab<think>") + run(llm, params)
    choices = [choice for output in outputs for choice in output.outputs]
    return [(list(c.token_ids), c.finish_reason, c.logprobs) for c in choices]


@pytest.fixture(scope="module")
def in_turn(model: Path) -> list[Any]:
    return told(model, PARAMS, async_scheduling=False)


@pytest.fixture
def steps(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The steps of executors, with the parameter's worker, in the thread of the core."""
    make_worker: Callable[[VllmConfig], StepWorker] = request.param
    Recorder.steps = []
    monkeypatch.setattr(uniproc, "make_executor", lambda config: Recorder(config, make_worker))
    return Recorder.steps


@pytest.mark.parametrize(
    ("steps", "options"),
    [
        pytest.param(Worker, {}, id="cpu"),
        pytest.param(Worker, TIGHT, id="cpu-tight"),
        pytest.param(on_stand_in, EAGER | TIGHT, id="eager-tight"),
        pytest.param(on_stand_in, GRAPHS, id="graphs"),
    ],
    indirect=["steps"],
)
def test_masks_that_come_late_change_no_token(
    model: Path, in_turn: list[Any], steps: list[Any], options: dict[str, Any]
) -> None:
    assert told(model, PARAMS, max_model_len=256, **options) == in_turn
    assert sum(is_late for _, is_late in steps) > len(steps) // 3


@pytest.mark.parametrize("steps", [Worker, on_stand_in], indirect=True, ids=["cpu", "stand-in"])
@pytest.mark.parametrize("is_alone", [True, False])
def test_a_constrained_request_is_in_every_step(
    model: Path, steps: list[Any], is_alone: bool
) -> None:
    params = [constrained(regex="[^x]{50}", max_tokens=50, temperature=0.3)]
    if not is_alone:
        params += [SamplingParams(max_tokens=50, ignore_eos=True)]
    told(model, params)
    names = sorted({name for requests, _ in steps for name in requests})
    for name in names:
        assert sum(name in requests for requests, _ in steps) in (50, 51)
    assert sum(bool(requests) for requests, _ in steps) <= 2 * 52


def test_a_thread_or_ranks_ask_for_no_masks(model: Path, in_turn: list[Any]) -> None:
    assert told(model, PARAMS) == in_turn
