"""A model of states runs as on a device too, where graphs hold steps and prefixes are hit."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from pkgutil import iter_modules

import pytest
import torch

from tests.builders import request
from tests.models.checkpoints import make_model, save
from tests.models.test_schedules import PROMPTS, Greedy
from tests.stand_in_device import StandInDevice
from vllm_lite import LLM, SamplingParams
from vllm_lite.config.engine_args import EngineArgs
from vllm_lite.core.kv_plan import plan_kv_cache
from vllm_lite.core.scheduler import Scheduler
from vllm_lite.layers import states
from vllm_lite.loader.load import load_model
from vllm_lite.worker.drafting.drafters import Models
from vllm_lite.worker.gpu_worker import device_runner
from vllm_lite.worker.graph_shapes import GraphShape
from vllm_lite.worker.kv_cache import allocate_kv_cache, allocate_states

LONGER = (GraphShape(8, 3, 64), GraphShape(16, 4, 64))


@pytest.mark.parametrize("longer", [(), LONGER], ids=["decode", "longer"])
@pytest.mark.parametrize("family", ["mamba2", "mamba", "falcon_h1", "lfm2", "qwen3_5"])
def test_steps_of_a_device_give_the_same_tokens(
    family: str, longer: tuple[GraphShape, ...], tmp_path: Path
) -> None:
    """Of each kind of state, alone, between layers of attention and beside attention."""
    reference = make_model(family)
    args = EngineArgs(
        model=str(save(reference, tmp_path)),
        dtype="float32",
        device="cpu",
        skip_tokenizer_init=True,
        max_model_len=64,
        max_num_batched_tokens=16,
        block_size=8,
        mamba_block_size=16,
    )
    config = args.create_engine_config()
    model, device = load_model(config, "cpu"), torch.device("cpu")
    plan = plan_kv_cache(config, model.kv_cache_spec(), 1 << 20)
    model.bind_kv_cache(allocate_kv_cache(plan, device), allocate_states(plan, device))
    runner, _ = device_runner(config, plan, Models(model), StandInDevice(), (1, 2, 4), longer)
    scheduler, greedy = Scheduler(config, plan), Greedy(reference)
    for _ in range(2):  # the second time prefixes are hit
        requests = [
            request(prompt, temperature=0.0, max_tokens=12, ignore_eos=True) for prompt in PROMPTS
        ]
        for each in requests:
            scheduler.add_request(each)
        while scheduler.has_requests():
            step = scheduler.schedule()
            scheduler.update_from_output(step, runner.submit(step).get())
        for each, prompt in zip(requests, PROMPTS, strict=True):
            assert greedy.gives(prompt, each.output_token_ids)
    assert [each.num_cached_tokens for each in requests] == [32, 0, 0, 24, 40]


# A family with each kind of state.
KINDS = {
    "delta": "qwen3_next",
    "key_delta": "kimi_linear",
    "lightning": "minimax",
    "mamba1": "mamba",
    "mamba2": "mamba2",
    "recurrence": "recurrent_gemma",
    "short_conv": "lfm2",
}


def test_every_kind_of_state_is_hit() -> None:
    assert sorted(KINDS) == sorted(module.name for module in iter_modules(states.__path__))


@pytest.mark.parametrize("family", KINDS.values(), ids=KINDS)
def test_a_hit_changes_no_bit_of_the_logits(family: str, tmp_path: Path) -> None:
    """Behind a prompt, within one and behind a text, where the prefix was computed in chunks."""
    params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, logprobs=131)
    with LLM(
        str(save(make_model(family), tmp_path)),
        dtype="float32",
        skip_tokenizer_init=True,
        disable_frontend_multiprocessing=True,
        max_model_len=96,
        max_num_batched_tokens=16,
        block_size=8,
        mamba_block_size=16,
        max_logprobs=131,
        logprobs_mode="raw_logits",
    ) as llm:

        def answer(prompt: Sequence[int]) -> tuple[int | None, list[int], list[list[float]]]:
            (output,) = llm.generate({"prompt_token_ids": list(prompt)}, params)
            (text,) = output.outputs
            logits = [[row[i].logprob for i in range(131)] for row in text.logprobs or []]
            return output.num_cached_tokens, list(text.token_ids), logits

        first = PROMPTS[-1]
        _, tokens, _ = answer(first)
        prompts = [first, [*first[:37], 9, 9], first + tokens + [3, 1, 4]]
        hits = [answer(prompt) for prompt in prompts]
        assert [hit[0] for hit in hits] == [40, 32, 48]
        for prompt, hit in zip(prompts, hits, strict=True):
            assert llm.reset_prefix_cache()
            assert answer(prompt) == (0, *hit[1:])
