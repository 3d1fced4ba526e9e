"""A recorded step takes any inputs, gives any results, and shares memory with its variants."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.kernels.test_fusion import step_of
from vllm_lite.kernels.cpu import ops as cpu
from vllm_lite.kernels.cpu.program import (
    STEP_INPUTS,
    StepInput,
    StepTensors,
    Variant,
    record_step,
    record_variants,
)

SIZE, HEADS, MOST = 64, 2, 40
NORM = torch.ones(SIZE)
TABLE, PLACES = torch.randn(2, 300, SIZE)
# Hidden states as they come, positions of three kinds in rows of fixed length, and what a second
# group of layers has of its own.
INPUTS = STEP_INPUTS | {
    "embeddings": StepInput(torch.float32, ("T", SIZE)),
    "rope_positions": StepInput(torch.int64, (3, MOST)),
    "block_table_1": StepInput(torch.int32, ("R", "*")),
    "slot_mapping_1": StepInput(torch.int64, ("T",)),
}


def full_step(*lengths: int) -> StepTensors:
    """Prompts that two groups cache in different blocks, in tables of different widths."""
    step = step_of(*lengths)
    num_tokens = len(step["input_ids"])
    wide = torch.zeros(len(lengths), 9, dtype=torch.int32)[:, : step["block_table"].shape[1] + 2]
    wide[:, : step["block_table"].shape[1]] = step["block_table"].flip(0)
    rows = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths))
    slots = wide[rows, step["positions"] // 16].long() * 16 + step["positions"] % 16
    return {
        **step,
        "embeddings": torch.randn(num_tokens, SIZE),
        "rope_positions": torch.randint(0, 300, (3, MOST)),
        "block_table_1": wide,
        "slot_mapping_1": slots,
    }


class TwoGroups:
    """Two attentions, each over a cache of its own."""

    def __init__(self) -> None:
        self.memory = torch.zeros(4, 12, HEADS, 16, SIZE // HEADS)
        self.caches = list(self.memory)

    def attend(self, step: StepTensors, hidden: Tensor, group: int) -> Tensor:
        key_cache, value_cache = self.caches[2 * group : 2 * group + 2]
        suffix = "_1" if group else ""
        heads = hidden.view(-1, HEADS, SIZE // HEADS)
        cpu.reshape_and_cache(heads, heads, key_cache, value_cache, step[f"slot_mapping{suffix}"])
        table, starts, lens = (
            step[name] for name in (f"block_table{suffix}", "query_start_loc", "seq_lens")
        )
        return cpu.paged_attention(heads, key_cache, value_cache, table, starts, lens, 0.1)

    def finish(self, step: StepTensors, hidden: Tensor) -> tuple[Tensor, Tensor]:
        num_tokens = len(step["input_ids"])
        places = cpu.embedding(step["rope_positions"][1][:num_tokens], PLACES)
        places = cpu.scaled_add(places, cpu.embedding(step["positions"], PLACES))
        first = self.attend(step, cpu.scaled_add(hidden, places, 0.5), 0).view(-1, SIZE)
        tap = cpu.scaled_add(first, hidden)
        return cpu.rms_norm(self.attend(step, tap, 1).view(-1, SIZE), NORM, 1e-6), tap

    def of_ids(self, step: StepTensors) -> tuple[Tensor, Tensor]:
        return self.finish(step, cpu.embedding(step["input_ids"], TABLE))

    def of_embeddings(self, step: StepTensors) -> tuple[Tensor, Tensor]:
        return self.finish(step, step["embeddings"])


def test_variants_share_memory() -> None:
    layers = TwoGroups()
    passes = (layers.of_ids, layers.of_embeddings)
    with torch.inference_mode():
        recorded = record_variants([Variant(each, full_step(3), INPUTS) for each in passes], MOST)
        for step in (full_step(20, 9), full_step(1), full_step(7, 1, 32), full_step(2, 2)):
            for forward, program in zip(passes, recorded, strict=True):
                layers.memory.zero_()
                want = forward(step)
                layers.memory.zero_()
                got = program.run(step)
                assert isinstance(got, tuple) and len(got) == 2
                assert all(map(torch.equal, got, want))
    starts = {program.run(step)[0].untyped_storage().data_ptr() for program in recorded}
    assert len(starts) == 1


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("input_ids", torch.zeros(4, dtype=torch.int32)),
        ("positions", torch.arange(5)),
        ("slot_mapping", torch.arange(8)[::2]),
        ("embeddings", torch.randn(4, SIZE + 1)),
        ("embeddings", torch.randn(SIZE, 4).t()),
        ("rope_positions", torch.zeros(3, MOST + 1, dtype=torch.int64)),
        ("block_table", torch.zeros(1, 3, dtype=torch.int64)),
        ("block_table_1", torch.zeros(3, 1, dtype=torch.int32).t()[:, ::2]),
        ("query_start_loc", torch.zeros(3, dtype=torch.int32)),
        ("seq_lens", torch.zeros(1, dtype=torch.int64)),
    ],
)
def test_an_input_of_another_shape_is_refused_by_name(name: str, wrong: Tensor) -> None:
    layers = TwoGroups()
    with torch.inference_mode():
        program = record_step(layers.of_ids, full_step(3), MOST, INPUTS)
    with pytest.raises(ValueError, match=f"{name} must be dense"):
        program.run({**full_step(4), name: wrong})
    assert not layers.memory.any()
