"""Every family has the tokens of transformers, whatever the schedule: one engine runs them all."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
    for start, length in [(0, 40), (1, 5), (2, 1), (3, 27), (0, 44)]
]
NUM_TOKENS = 12
# Those of one length grow together, beyond what there is room for.
BATCH = sorted(PROMPTS * 7, key=len)
NUM_BLOCKS = {8: 25, 32: 9}


class Greedy:
    """The answers of a model at temperature 0."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = model
        self._judged: dict[tuple[tuple[int, ...], tuple[int, ...]], bool] = {}

    @torch.inference_mode()
    def gives(self, prompt: Sequence[int], tokens: Sequence[int]) -> bool:
        """Whether behind the prompt each token is the likeliest, or one of two that are alike."""
        key = tuple(prompt), tuple(tokens)
        if key not in self._judged:
            ids = torch.tensor([[*prompt, *tokens[:-1]]])
            logits = self._model(ids).logits[0, len(prompt) - 1 :]
            chosen = logits.gather(1, torch.tensor([key[1]]).T)
            self._judged[key] = bool((logits.amax(1, keepdim=True) - chosen < 1e-3).all())
        return self._judged[key]


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
    greedy = Greedy(reference)
    params = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True)
    with LLM(
        str(save(reference, tmp_path)),
        dtype="float32",
        skip_tokenizer_init=True,
        disable_frontend_multiprocessing=True,
        block_size=block_size,
        max_model_len=64,
        # Chunks of prompts, and too few blocks for all.
        max_num_batched_tokens=16,
        num_gpu_blocks_override=NUM_BLOCKS[block_size],
        async_scheduling=block_size == 8,
    ) as llm:
        for prompts in (PROMPTS, BATCH):
            outputs = llm.generate([{"prompt_token_ids": ids} for ids in prompts], params)
            for prompt, output in zip(prompts, outputs, strict=True):
                tokens = output.outputs[0].token_ids
                assert len(tokens) == NUM_TOKENS and greedy.gives(prompt, tokens)
        stats = llm.llm_engine.get_stats()
        # A state never grows: a request keeps the slot with which it begins.
        assert (stats.num_preemptions > 0) == (stats.num_total_blocks > 0)
        params = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True)
        for _ in range(2):  # the second finds its prompt in the prefix cache
            (output,) = llm.generate([{"prompt_token_ids": PROMPTS[0]}], params)
        assert output.num_cached_tokens
        assert greedy.gives(PROMPTS[0], output.outputs[0].token_ids)
