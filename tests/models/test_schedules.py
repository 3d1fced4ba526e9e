"""Every family has the tokens of transformers, whatever the schedule: one engine runs them all."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from _pytest.mark import ParameterSet
from transformers import PreTrainedModel

from tests.models.checkpoints import make_model, save
from tests.models.families import CASES, FAMILIES
from vllm_lite import LLM, SamplingParams

PROMPTS = [
    [(7 * i * i + 3 * start) % 131 for i in range(length)]
    for start, length in [(0, 40), (1, 5), (2, 1), (3, 17), (0, 44)]
]
NUM_TOKENS = 12


@torch.inference_mode()
def greedy(model: PreTrainedModel, ids: list[int]) -> tuple[list[int], float]:
    """The likeliest continuation, and the smallest gap between the two best of a position."""
    gap, known = float("inf"), list(ids)
    for _ in range(NUM_TOKENS):
        best = model(torch.tensor([known])).logits[0, -1].topk(2)
        gap = min(gap, float(best.values[0] - best.values[1]))
        known.append(int(best.indices[0]))
    return known[len(ids) :], gap


def schedules() -> Iterator[ParameterSet]:
    """Every case with two block sizes; of each family but one is left to `make test`."""
    first = {next(c for c, (f, _) in CASES.items() if f == family): family for family in FAMILIES}
    for number, case in enumerate(CASES):
        for block_size in (8, 32):
            is_short = case in first and block_size == (8, 32)[number % 2]
            marks = () if is_short else pytest.mark.families
            yield pytest.param(case, block_size, marks=marks, id=f"{case}-{block_size}")


@pytest.mark.parametrize(("case", "block_size"), list(schedules()))
def test_no_schedule_changes_a_token(case: str, block_size: int, tmp_path: Path) -> None:
    family, changes = CASES[case]
    reference = make_model(family, **changes)
    want, gaps = zip(*(greedy(reference, prompt) for prompt in PROMPTS), strict=True)
    is_clear = [gap > 1e-3 for gap in gaps]
    assert any(is_clear)
    params = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True)
    with LLM(
        str(save(reference, tmp_path)),
        dtype="float32",
        skip_tokenizer_init=True,
        disable_frontend_multiprocessing=True,
        block_size=block_size,
        max_model_len=64,
        # Chunks of prompts, and too few blocks for all: some are preempted.
        max_num_batched_tokens=16,
        num_gpu_blocks_override=1 + 4 * 64 // block_size,
        async_scheduling=block_size == 8,
    ) as llm:
        for repeats in (1, 7):
            outputs = llm.generate([{"prompt_token_ids": ids} for ids in PROMPTS * repeats], params)
            for output, expected, clear in zip(
                outputs, want * repeats, is_clear * repeats, strict=True
            ):
                assert not clear or list(output.outputs[0].token_ids) == expected
        params = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True)
        for _ in range(2):  # the second finds its prompt in the prefix cache
            (output,) = llm.generate([{"prompt_token_ids": PROMPTS[0]}], params)
        assert output.num_cached_tokens
        assert not is_clear[0] or list(output.outputs[0].token_ids) == want[0][:1]
