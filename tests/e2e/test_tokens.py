"""The master invariant on the real model: scheduling never changes tokens.

The golden ids are transformers' greedy continuations in float32 of the same weights.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests import oracle
from vllm_lite import LLM, SamplingParams

GOLDEN: list[dict[str, Any]] = json.loads(
    Path(__file__).with_name("golden_demo.json").read_text(encoding="utf-8")
)
PROMPTS = [{"prompt_token_ids": entry["prompt_token_ids"]} for entry in GOLDEN]
EXPECTED = [entry["output_token_ids"] for entry in GOLDEN]
GREEDY = SamplingParams(temperature=0.0, max_tokens=64, ignore_eos=True)


def engine(**options: Any) -> LLM:
    settings: dict[str, Any] = {
        "dtype": "float32",
        "max_model_len": 2048,
        "max_num_seqs": 32,
        "num_gpu_blocks_override": 1500,
        "disable_frontend_multiprocessing": True,
    }
    return LLM("demo", **{**settings, **options})


def tokens(llm: LLM, prompts: list[dict[str, list[int]]]) -> list[list[int]]:
    outputs = llm.generate(prompts, GREEDY, use_tqdm=False)
    return [list(output.outputs[0].token_ids) for output in outputs]


def test_there_are_thirty_prompts_of_every_kind() -> None:
    assert len(GOLDEN) >= 30
    assert {e["kind"] for e in GOLDEN} == {"chat", "text", "code", "non-latin", "long"}
    assert all(len(ids) == 64 for ids in EXPECTED)


@torch.inference_mode()
def test_the_golden_ids_are_what_transformers_says() -> None:
    model = oracle.demo_hf_model()
    for index in (0, 11, 25):
        prompt, output = GOLDEN[index]["prompt_token_ids"], EXPECTED[index]
        logits = model(torch.tensor([prompt + output[:-1]])).logits[0, len(prompt) - 1 :]
        assert logits.argmax(-1).tolist() == output


@pytest.mark.slow
@pytest.mark.parametrize("max_num_batched_tokens", [16, 64, 2048])
def test_chunk_size_never_changes_tokens(max_num_batched_tokens: int) -> None:
    seqs = min(max_num_batched_tokens, 32)
    with engine(max_num_batched_tokens=max_num_batched_tokens, max_num_seqs=seqs) as llm:
        assert tokens(llm, PROMPTS) == EXPECTED


@pytest.mark.slow
@pytest.mark.parametrize("block_size", [8, 16, 32])
def test_block_size_never_changes_tokens(block_size: int) -> None:
    blocks = 1500 * 16 // block_size
    with engine(block_size=block_size, num_gpu_blocks_override=blocks) as llm:
        assert tokens(llm, PROMPTS) == EXPECTED


@pytest.mark.slow
def test_preemption_never_changes_tokens() -> None:
    with engine(num_gpu_blocks_override=80, max_model_len=1024) as llm:
        assert tokens(llm, PROMPTS) == EXPECTED
        assert llm.get_stats().num_preemptions > 0


@pytest.mark.slow
def test_a_warm_prefix_cache_never_changes_tokens() -> None:
    with engine() as llm:
        assert tokens(llm, PROMPTS) == EXPECTED
        outputs = llm.generate(PROMPTS, GREEDY, use_tqdm=False)
        assert [list(o.outputs[0].token_ids) for o in outputs] == EXPECTED
        assert sum(o.num_cached_tokens or 0 for o in outputs) > 1000


@pytest.mark.slow
def test_a_request_alone_gets_the_same_tokens_as_in_a_batch() -> None:
    with engine(enable_prefix_caching=False) as llm:
        for prompt, expected in zip(PROMPTS, EXPECTED, strict=True):
            assert tokens(llm, [prompt]) == [expected]


@pytest.mark.slow
def test_priority_order_never_changes_tokens() -> None:
    with engine(scheduling_policy="priority", max_num_seqs=4) as llm:
        priorities = [i % 5 for i in range(len(PROMPTS))]
        outputs = llm.generate(PROMPTS, GREEDY, use_tqdm=False, priority=priorities)
        assert [list(o.outputs[0].token_ids) for o in outputs] == EXPECTED


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"block_size": 9, "num_gpu_blocks_override": 1000},
        {"block_size": 128, "num_gpu_blocks_override": 100},
        {
            "max_num_partial_prefills": 3,
            "max_long_partial_prefills": 2,
            "max_num_batched_tokens": 64,
        },
        {"long_prefill_token_threshold": 7},
        {"enable_chunked_prefill": False, "max_num_batched_tokens": 2048},
        {"kv_cache_dtype": "float32", "enable_prefix_caching": False},
    ],
)
def test_no_option_of_scheduling_or_caching_changes_tokens(options: dict[str, Any]) -> None:
    # The longest prompt among them.
    order = sorted(range(len(GOLDEN)), key=lambda i: -len(PROMPTS[i]["prompt_token_ids"]))[::5]
    with engine(**options) as llm:
        assert tokens(llm, [PROMPTS[i] for i in order]) == [EXPECTED[i] for i in order]


@pytest.mark.slow
@pytest.mark.parametrize("kv_cache_dtype", ["fp8", "int8"])
def test_scheduling_never_changes_tokens_of_a_small_cache(kv_cache_dtype: str) -> None:
    """Whole prompts into an empty cache; then in chunks, preempted, and from a warm cache."""
    options = {"kv_cache_dtype": kv_cache_dtype, "dtype": "bfloat16"}
    prompts = PROMPTS[1::4]
    with engine(enable_prefix_caching=False, **options) as llm:
        cold = tokens(llm, prompts)
    tight = {"num_gpu_blocks_override": 40, "max_model_len": 512, "max_num_batched_tokens": 64}
    with engine(**tight, **options) as llm:
        assert tokens(llm, prompts) == cold
        assert llm.get_stats().num_preemptions > 0
    with engine(**options) as llm:
        assert tokens(llm, prompts[::-1])[::-1] == cold
        outputs = llm.generate(prompts, GREEDY, use_tqdm=False)
        assert [list(o.outputs[0].token_ids) for o in outputs] == cold
        assert sum(o.num_cached_tokens or 0 for o in outputs) > 200


@pytest.mark.slow
def test_bfloat16_agrees_where_the_choice_is_clear() -> None:
    """Teacher-forced: each step is judged on transformers' own prefix, by one prompt pass."""
    prompts, due = [], []
    for entry in GOLDEN:
        ids, output = entry["prompt_token_ids"], entry["output_token_ids"]
        prompts.append({"prompt_token_ids": ids + output})
        due.append((len(ids), output, entry["top2_gaps"]))
    params = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=1, ignore_eos=True)
    clear = agreed = 0
    with engine(dtype="bfloat16") as llm:
        outputs = llm.generate(prompts, params, use_tqdm=False)
    for request, (start, output, gaps) in zip(outputs, due, strict=True):
        assert request.prompt_logprobs is not None
        for offset, (token, gap) in enumerate(zip(output, gaps, strict=True)):
            if gap <= 0.1:
                continue
            position = request.prompt_logprobs[start + offset]
            assert position is not None
            clear += 1
            agreed += position[token].rank == 1
    assert clear > 1000
    assert agreed / clear >= 0.99, f"{agreed} of {clear} clear steps agree"
