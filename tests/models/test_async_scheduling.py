"""Steps that run ahead of their answers: the same tokens, whatever a request asks for."""

from __future__ import annotations

from typing import Any

import pytest

from tests.checkpoints import write_hf
from vllm_lite import LLM, SamplingParams
from vllm_lite.outputs import RequestOutput

PROMPTS = [
    [7 + i * 3 % 90 for i in range(start, start + length)]
    for start, length in [(0, 5), (1, 40), (2, 1), (3, 17), (0, 33), (9, 23), (4, 8), (0, 40)]
]
KINDS = [
    SamplingParams(temperature=0, max_tokens=20, ignore_eos=True),
    SamplingParams(temperature=1.0, seed=3, max_tokens=13, logprobs=2),
    SamplingParams(temperature=0.7, top_k=20, top_p=0.9, seed=5, max_tokens=20, n=2),
    SamplingParams(temperature=0, max_tokens=20, repetition_penalty=1.3, min_tokens=6),
    SamplingParams(temperature=0, max_tokens=1),
    SamplingParams(temperature=0, max_tokens=9, prompt_logprobs=1),
    SamplingParams(temperature=0, max_tokens=20, bad_words=None, logit_bias={3: 5.0}),
    SamplingParams(temperature=0.9, seed=8, max_tokens=20, stop_token_ids=list(range(40))),
]


def told(output: RequestOutput) -> list[Any]:
    return [
        (list(one.token_ids), one.finish_reason, one.stop_reason, one.logprobs)
        for one in output.outputs
    ] + [output.prompt_logprobs]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_hf(tmp_path_factory.mktemp("tiny")))


def run(model: str, **options: Any) -> tuple[list[Any], int]:
    settings = {"dtype": "float32", "max_model_len": 64, "load_format": "dummy", "seed": 1}
    settings |= {"skip_tokenizer_init": True, "block_size": 8, "max_num_batched_tokens": 24}
    with LLM(model, **(settings | {"max_num_seqs": 6} | options)) as llm:
        prompts = [{"prompt_token_ids": ids} for ids in PROMPTS]
        outputs = llm.generate(prompts, KINDS, use_tqdm=False)
        again = llm.generate(prompts, KINDS, use_tqdm=False)
        return [told(o) for o in outputs + again], llm.get_stats().num_preemptions


@pytest.mark.parametrize(
    "options", [{}, {"num_gpu_blocks_override": 14}, {"enable_prefix_caching": False}]
)
def test_running_ahead_changes_nothing_that_is_told(model: str, options: dict[str, Any]) -> None:
    in_turn, _ = run(model, **options)
    ahead, num_preemptions = run(model, async_scheduling=True, **options)
    assert ahead == in_turn
    assert bool(num_preemptions) == ("num_gpu_blocks_override" in options)
