"""A model of states runs as on a device too, where graphs hold steps and prefixes are hit."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.builders import request
from tests.models.checkpoints import make_model, save
from tests.models.test_schedules import PROMPTS, Greedy
from tests.stand_in_device import StandInDevice
from vllm_lite.config.engine_args import EngineArgs
from vllm_lite.core.kv_plan import plan_kv_cache
from vllm_lite.core.scheduler import Scheduler
from vllm_lite.loader.load import load_model
from vllm_lite.worker.gpu_worker import device_runner
from vllm_lite.worker.kv_cache import allocate_kv_cache, allocate_states


@pytest.mark.parametrize("family", ["mamba2", "mamba", "falcon_h1", "lfm2", "qwen3_5"])
def test_steps_of_a_device_give_the_same_tokens(family: str, tmp_path: Path) -> None:
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
    runner, _ = device_runner(config, plan, model, StandInDevice(), (1, 2, 4))
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
