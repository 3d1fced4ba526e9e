"""Graphs of steps with drafts and with parts of prompts: which there are, and their exactness."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.builders import TINY_SPEC, core_config
from tests.checkpoints import write_hf
from tests.models.test_async_scheduling import EAGER, on_stand_in, serve
from vllm_lite.config.compilation import CompilationConfig
from vllm_lite.core.kv_plan import KVCachePlan
from vllm_lite.kernels import dispatch
from vllm_lite.worker.batch import StepRows
from vllm_lite.worker.block_table import block_tables
from vllm_lite.worker.decode_graphs import DecodeGraphs
from vllm_lite.worker.device_inputs import DeviceInputs, MirroredBlockTables
from vllm_lite.worker.graph_shapes import GraphShape, longer_shapes
from vllm_lite.worker.request_states import RequestStates
from vllm_lite.worker.step_plan import StepPlan

WITH_PROMPTS = {"cudagraph_mode": "FULL_AND_PIECEWISE"}
DRAFTS = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 1}
DRAFTS |= {"prompt_lookup_max": 3, "num_speculative_tokens_per_batch_size": [[1, 64, 3]]}


def shapes(compilation: dict[str, Any] | None = None, **options: Any) -> list[tuple[int, int]]:
    sizes: dict[str, Any] = {"max_num_seqs": 100, "max_num_batched_tokens": 1000}
    config = core_config(**{**sizes, "max_model_len": 4096, **options})
    object.__setattr__(config, "compilation", CompilationConfig(**(compilation or {})))
    found = longer_shapes(config)
    assert {shape.max_seq_len for shape in found} <= {2048, 4096}
    assert not any(shape.is_decode for shape in found)
    return [(shape.num_tokens, shape.num_rows) for shape in found]


def test_shapes_of_drafts_are_captured_where_there_are_drafts() -> None:
    drafts: dict[str, Any] = {"method": "ngram", "num_speculative_tokens": 3}
    alone = {"cudagraph_mode": "FULL_DECODE_ONLY"}
    assert shapes(alone) == []
    assert shapes(alone, **drafts) == [(4 * n, n) for n in (1, 2, 4, 8, 24, 48, 100)]
    assert shapes(alone, **drafts | {"num_speculative_tokens": 7})[-1] == (512, 64)
    given = alone | {"cudagraph_capture_sizes": [2, 3, 8]}
    assert shapes(given, **drafts) == [(12, 3), (32, 8)]
    assert shapes({"cudagraph_mode": "NONE"}, **drafts) == []
    assert shapes(enforce_eager=True, **drafts) == []


def test_steps_with_prompts_are_captured_unless_a_mode_says_otherwise() -> None:
    few = [(n, n - 1) for n in (16, 32, 48, 64, 96)]
    more = [(n, 100) for n in (128, 160, 192, 224, 256, 320, 384, 448, 512)]
    assert shapes() == shapes(WITH_PROMPTS) == shapes({"cudagraph_mode": "FULL"}) == few + more
    assert shapes(max_num_batched_tokens=130) == [*few, (128, 100), (130, 100)]
    assert shapes(max_num_batched_tokens=24, max_num_seqs=8) == [(16, 8), (24, 8)]
    assert shapes({"cudagraph_mode": "FULL_DECODE_ONLY"}) == []
    # Given numbers are numbers of tokens here.
    assert shapes(WITH_PROMPTS | {"cudagraph_capture_sizes": [1, 2, 5]}) == [(2, 1), (5, 4)]
    assert shapes(WITH_PROMPTS | {"max_cudagraph_capture_size": 8})[-1] == (8, 7)


def test_a_step_is_padded_to_little_more_than_twice_its_tokens() -> None:
    shape = GraphShape(512, 100, 2048)
    assert shape.holds(512, 100, 2048) and shape.holds(224, 1, 300)
    assert not shape.holds(223, 1, 300)
    assert not shape.holds(513, 1, 600) and not shape.holds(512, 101, 600)
    assert not shape.holds(512, 100, 2049)
    assert GraphShape(64, 63, 2048).holds(2, 1, 2)


@pytest.fixture
def replayed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Tokens of each step but those tried at start, and of its graph; 0 where it has none."""
    told: list[tuple[int, int]] = []
    shape_of = DecodeGraphs._shape_of

    def watched(self: DecodeGraphs, plan: StepPlan) -> GraphShape | None:
        shape = shape_of(self, plan)
        if self.shapes and not plan.is_decode:
            told.append((int(plan.counts.sum()), 0 if shape is None else shape.num_tokens))
        return shape

    monkeypatch.setattr(DecodeGraphs, "_shape_of", watched)
    return told


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize(
    "options",
    [
        {"speculative_config": DRAFTS},
        {"compilation_config": WITH_PROMPTS},
        {"compilation_config": WITH_PROMPTS, "speculative_config": DRAFTS},
        {"compilation_config": WITH_PROMPTS, "num_gpu_blocks_override": 14},
    ],
    ids=["drafts", "prompts", "both", "tight"],
)
def test_graphs_give_the_tokens_and_logprobs_of_eager_steps(
    tmp_path: Path, replayed: list[tuple[int, int]], options: dict[str, Any], ahead: bool
) -> None:
    model = str(write_hf(tmp_path))
    eager = {name: value for name, value in options.items() if name != "compilation_config"}
    expected = serve(model, on_stand_in, async_scheduling=ahead, **EAGER, **eager)
    assert not replayed
    assert serve(model, on_stand_in, async_scheduling=ahead, **options) == expected
    used = [num_captured for _, num_captured in replayed if num_captured]
    padded = [pair for pair in replayed if pair[0] < pair[1]]
    assert len(used) > 5 and padded
    if "compilation_config" in options:
        assert len(used) > 0.8 * len(replayed)


def test_the_gpus_own_kernels_take_padded_steps(
    tmp_path: Path, replayed: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("triton")
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1}
    model = str(write_hf(tmp_path, num_hidden_layers=1, **heads))
    few: dict[str, Any] = {"requests": 2, "max_num_seqs": 2, "speculative_config": DRAFTS}
    few |= {"max_num_batched_tokens": 16, "most_tokens": 6}
    monkeypatch.setenv("VLLM_LITE_CPU_ISA", "triton")
    try:
        eager = serve(model, on_stand_in, **few, **EAGER)
        replayed.clear()
        graphed = serve(model, on_stand_in, **few, compilation_config=WITH_PROMPTS)
    finally:
        monkeypatch.undo()
        dispatch.select_ops("cpu")
    # By torch's products, whose last bits differ between numbers of rows.
    assert {name: made[0] for name, made in graphed.items()} == {
        name: made[0] for name, made in eager.items()
    }
    assert any(0 < num_tokens < num_captured for num_tokens, num_captured in replayed)


STEPS = st.lists(st.tuples(st.integers(1, 9), st.integers(0, 40)), min_size=1, max_size=5)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(steps=STEPS, spare_rows=st.integers(0, 3), spare_tokens=st.integers(0, 9))
def test_padding_changes_no_input_of_any_token(
    steps: list[tuple[int, int]], spare_rows: int, spare_tokens: int
) -> None:
    """Tokens behind the last row's are of no request, and are written nowhere."""
    config, device = core_config(), torch.device("cpu")
    plan = KVCachePlan(TINY_SPEC, 200, 8, 0)
    tables = block_tables(config, plan, MirroredBlockTables)
    inputs = DeviceInputs(RequestStates(config, tables), tables, device)
    counts, starts = (np.array(column, np.int64) for column in zip(*steps, strict=True))
    slots = np.arange(len(steps))[::-1].copy()
    for slot in slots.tolist():
        tables.set_row(slot, [list(range(1 + 7 * slot, 8 + 7 * slot))])
        inputs.set_tokens(slot, 0, np.arange(50, dtype=np.int32) + 100 * slot)
    none = np.empty(0, np.int64)
    names = [str(slot) for slot in slots]
    batch = inputs.begin(StepPlan(names, slots, starts, counts, 0 * counts, none, none, none))
    assert batch.rows is not None
    num_tokens, num_rows = int(counts.sum()), len(steps)
    shape = GraphShape(num_tokens + spare_tokens + spare_rows + 1, num_rows + spare_rows, 64)
    idle = inputs.idle_rows(shape)
    padded = StepRows(
        *(
            torch.cat([given, filler[num_rows:]])
            for given, filler in zip(
                (batch.rows.slots, batch.rows.starts, batch.rows.counts),
                (idle.slots, idle.starts, idle.counts),
                strict=True,
            )
        )
    )
    plain, made = inputs.model_inputs(batch), inputs.graph_inputs(padded, shape)
    assert torch.equal(made.input_ids[:num_tokens], plain.input_ids)
    assert torch.equal(made.positions[:num_tokens], plain.positions)
    told, own = made.attention, plain.attention
    assert torch.equal(told.slot_mappings[0][:num_tokens], own.slot_mappings[0])
    assert set(told.slot_mappings[0][num_tokens:].tolist()) == {-1}
    assert torch.equal(told.query_start_loc[: num_rows + 1], own.query_start_loc)
    assert set(told.query_start_loc[num_rows:].tolist()) == {num_tokens}
    assert told.seq_lens.tolist() == [*own.seq_lens.tolist(), *[0] * spare_rows]
    width = own.block_tables[0].shape[1]
    assert torch.equal(told.block_tables[0][:num_rows, :width], own.block_tables[0])
    assert (told.num_tokens, told.num_requests) == (shape.num_tokens, shape.num_rows)
