"""The one-process executor from a checkpoint's description to tokens, with dummy weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.checkpoints import write_hf
from vllm_lite.config.engine_args import EngineArgs
from vllm_lite.config.vllm import VllmConfig
from vllm_lite.core.kv_plan import plan_kv_cache
from vllm_lite.core.step import NewRequestData, SchedulerOutput
from vllm_lite.errors import UsageError
from vllm_lite.executor.executor import Executor
from vllm_lite.executor.uniproc import UniprocExecutor
from vllm_lite.sampling_params import SamplingParams
from vllm_lite.worker.profile import activation_bytes

GIB = 1 << 30


def tiny_config(folder: Path, **options: Any) -> VllmConfig:
    """A two-layer model with random weights and no tokenizer."""
    settings = {"dtype": "float32", "max_model_len": 64, "max_num_seqs": 4, **options}
    args = EngineArgs(
        model=str(write_hf(folder)), load_format="dummy", skip_tokenizer_init=True, **settings
    )
    return args.create_engine_config()


def test_steps_give_tokens(tmp_path: Path) -> None:
    config = tiny_config(tmp_path)
    executor: Executor = UniprocExecutor(config)
    plan = plan_kv_cache(config, executor.kv_cache_spec(), executor.available_memory())
    executor.initialize_cache(plan)
    new = NewRequestData("r", [1, 2, 3, 4, 5], SamplingParams(temperature=0), [[1]], 0)
    first = executor.submit(SchedulerOutput([new], {}, {"r": 5}, {"r": 1}, 5, [], [])).get()
    second = executor.submit(SchedulerOutput([], {}, {"r": 1}, {"r": 1}, 1, [], [])).get()
    for output in (first, second):
        assert 0 <= output.sampled_token_ids["r"][0] < config.facts.vocab_size
        assert not output.errors
    assert "threads" in executor.describe()
    executor.shutdown()
    with pytest.raises(RuntimeError):
        executor.kv_cache_spec()


def test_steps_before_the_cache_are_refused(tmp_path: Path) -> None:
    executor = UniprocExecutor(tiny_config(tmp_path))
    with pytest.raises(RuntimeError, match="initialize_cache"):
        executor.submit(SchedulerOutput([], {}, {}, {}, 0, [], [])).get()


def test_memory_is_the_users_number_or_a_share_of_free_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny_config(tmp_path, gpu_memory_utilization=0.5)
    executor = UniprocExecutor(config)
    monkeypatch.setattr("vllm_lite.platform.free_memory", lambda: 10 * GIB)
    assert executor.available_memory() == 5 * GIB - activation_bytes(config)
    monkeypatch.setattr("vllm_lite.platform.free_memory", lambda: 0)
    assert executor.available_memory() == 0
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "1.5")
    assert executor.available_memory() == 3 * GIB // 2
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "-1")
    with pytest.raises(UsageError, match="VLLM_CPU_KVCACHE_SPACE"):
        executor.available_memory()


def test_a_step_of_a_small_model_needs_little(tmp_path: Path) -> None:
    assert activation_bytes(tiny_config(tmp_path)) < 256 << 20
