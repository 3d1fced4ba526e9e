"""A graph's sampler draws what the sampler outside of graphs draws, bit by bit."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.models.gpu_ops import selected, triton_ops
from vllm_lite.kernels import dispatch
from vllm_lite.sample.sampler import Sampler
from vllm_lite.sample.states import SamplingStates, TokenTable
from vllm_lite.sampling_params import SamplingParams
from vllm_lite.worker.batch import StepRows
from vllm_lite.worker.graph_sampler import GraphSampler

SIZE, ROWS = 300, 4
CPU = torch.device("cpu")
KINDS: list[dict[str, Any]] = [
    {"temperature": 0},
    {"temperature": 1.0},
    {"temperature": 0.7, "top_k": 9, "seed": 4},
    {"temperature": 1.3, "top_p": 0.8, "seed": 4},
    {"temperature": 0.9, "min_p": 0.05, "top_k": 40, "top_p": 0.9},
    {"temperature": 0, "logit_bias": {3: 50.0}},
]
# The slots of steps: rows join, leave and change places, and graphs have spare rows.
BATCHES = [[4, 2, 0, 3], [1], [0], [3, 1, 2], [2, 1], [1, 5], [0]]


@pytest.fixture(params=["cpu", "triton"])
def chosen(request: pytest.FixtureRequest) -> Any:
    """The operations."""
    with selected(triton_ops() if request.param == "triton" else dispatch.select_ops("cpu")):
        yield


@pytest.mark.usefixtures("chosen")
def test_a_graph_draws_the_sampler_s_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GraphSampler, "most_rows", ROWS)
    table = TokenTable(np.zeros((len(KINDS), 40), np.int32), np.array([3, 1, 7, 2, 5, 4]))
    states = SamplingStates(table, SIZE, 11, CPU)
    for slot, params in enumerate(KINDS):
        states.add(slot, SamplingParams(**params), [])
    appended: list[tuple[Tensor, ...]] = []
    inputs: Any = SimpleNamespace(append_at=lambda *where: appended.append(where))
    model: Any = SimpleNamespace(compute_logits=Tensor.clone)
    graph, sampler = GraphSampler(model, inputs, CPU), Sampler(table)
    for step, slots in enumerate(batch for batch in BATCHES for _ in range(3)):
        count, positions = len(slots), table.num_prompt_tokens[slots] + step
        logits, batch = torch.randn(ROWS, SIZE) * 3, states.batch(np.array(slots))
        padding = [0] * (ROWS - count)
        starts = torch.tensor([*(positions - 1), *padding])
        rows = StepRows(torch.tensor(slots + padding), starts, torch.ones_like(starts))
        graph.prepare(batch)
        made = graph.sample(rows, logits)
        assert torch.equal(made.logits, logits)
        if batch.is_plain:
            want = sampler.choose(logits[:count].clone(), batch, positions)
            assert torch.equal(made.token_ids[:count], want.token_ids)
            assert torch.equal(made.largest[:count], want.largest)
        drawn = count if batch.is_plain else 0
        assert torch.equal(made.token_ids[drawn:], logits[drawn:].argmax(1))
        slots_told, positions_told, ids = appended.pop()
        assert torch.equal(slots_told, rows.slots) and torch.equal(ids, made.token_ids)
        assert torch.equal(positions_told, starts + 1)


@pytest.mark.usefixtures("chosen")
def test_what_is_drawn_changes_only_with_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    table = TokenTable(np.zeros((2, 40), np.int32), np.array([3, 1]))
    states = SamplingStates(table, SIZE, 11, CPU)
    for slot in range(2):
        states.add(slot, SamplingParams(temperature=1.0), [])
    graph = GraphSampler(SimpleNamespace(), SimpleNamespace(), CPU)  # type: ignore[arg-type]
    copied: list[str] = []
    monkeypatch.setattr(Tensor, "zero_", lambda _: copied.append("zero"))
    for slots in ([0, 1], [0, 1], [1], [1]):
        graph.prepare(states.batch(np.array(slots)))
    assert len(copied) == 2
