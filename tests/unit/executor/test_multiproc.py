"""Ranks in processes of their own: the tokens of one process, and an end with its cause."""

from __future__ import annotations

import itertools
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.models.checkpoints import make_model, save
from vllm_lite.config.engine_args import EngineArgs
from vllm_lite.config.vllm import VllmConfig
from vllm_lite.core.kv_plan import plan_kv_cache
from vllm_lite.core.step import EngineCoreRequest, NewRequestData, SchedulerOutput, TokenMasks
from vllm_lite.engine.core.engine_core import EngineCore
from vllm_lite.errors import EngineDeadError, UsageError
from vllm_lite.executor import multiproc
from vllm_lite.executor.multiproc import MultiprocExecutor
from vllm_lite.executor.rank_messages import RunStep, decode, encode
from vllm_lite.executor.select import make_executor
from vllm_lite.lifeline import ProcessSign
from vllm_lite.sampling_params import SamplingParams

# Seconds within which an engine ends whose rank is lost.
LIMIT = 5.0
PROMPTS = [[5, 9, 2, 77, 130, 0, 31, 64, 65, 66, 128] * n for n in (1, 2, 3, 1)]
KINDS = [
    SamplingParams(temperature=0, max_tokens=12, ignore_eos=True),
    SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, logprobs=2),
    SamplingParams(temperature=0.9, top_p=0.9, max_tokens=12, ignore_eos=True),
    SamplingParams(temperature=1, seed=7, max_tokens=12, ignore_eos=True, repetition_penalty=1.3),
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(make_model("llama", attention_bias=True), tmp_path_factory.mktemp("model"))


def config_of(model: Path, **options: Any) -> VllmConfig:
    settings: dict[str, Any] = {
        "dtype": "float32",
        "device": "cpu",
        "max_model_len": 64,
        "max_num_seqs": 4,
        "max_num_batched_tokens": 16,
        "block_size": 8,
        "num_gpu_blocks_override": 10,
        "skip_tokenizer_init": True,
    }
    return EngineArgs(model=str(model), **(settings | options)).create_engine_config()


def told(core: EngineCore) -> tuple[dict[str, list[int]], int]:
    """A core's tokens for all prompts, run in chunks, and its number of preemptions."""
    core.add_requests(
        EngineCoreRequest(str(i), prompt, params, [2], 0.0)
        for i, (prompt, params) in enumerate(zip(PROMPTS, KINDS, strict=True))
    )
    tokens: dict[str, list[int]] = {}
    preemptions = 0
    while core.has_work():
        for output in core.step().outputs:
            tokens.setdefault(output.request_id, []).extend(output.new_token_ids)
            preemptions += output.num_preemptions
    return tokens, preemptions


@pytest.mark.parametrize(
    ("size", "is_async"), [pytest.param(2, False, marks=pytest.mark.slow), (4, True)]
)
def test_ranks_give_the_tokens_of_one_process(model: Path, size: int, is_async: bool) -> None:
    alone = EngineCore(config_of(model, async_scheduling=is_async), make_executor)
    want, preemptions = told(alone)
    alone.shutdown()
    assert preemptions and all(len(tokens) == 12 for tokens in want.values())
    config = config_of(
        model, async_scheduling=is_async, tensor_parallel_size=size, max_parallel_loading_workers=3
    )
    core = EngineCore(config, make_executor)
    try:
        assert f"{size} ranks" in core.describe().kernels
        assert told(core)[0] == want
    finally:
        core.shutdown()


def test_ranks_verify_drafts_as_one_process_decodes(model: Path) -> None:
    alone = EngineCore(config_of(model), make_executor)
    want, _ = told(alone)
    alone.shutdown()
    # The model drafts for itself, so that drafts come true.
    drafting = {"method": "draft_model", "model": str(model), "num_speculative_tokens": 3}
    config = config_of(model, tensor_parallel_size=2, speculative_config=drafting)
    core = EngineCore(config, make_executor)
    try:
        assert told(core)[0] == want
        counts = core._scheduler.make_stats().spec_decoding
        assert counts is not None and counts.num_accepted_tokens > 0
    finally:
        core.shutdown()


def test_a_backend_of_processes_can_have_one_rank(model: Path) -> None:
    executor = make_executor(config_of(model, distributed_executor_backend="mp"))
    try:
        assert isinstance(executor, MultiprocExecutor) and executor.available_memory() > 0
    finally:
        executor.shutdown()


def greedy_step(request_id: str = "a") -> SchedulerOutput:
    new = NewRequestData(request_id, [1, 2, 3, 4, 5], KINDS[0], [[1]], 0)
    return SchedulerOutput([new], {}, {request_id: 5}, {request_id: 1}, 5, [], [])


@contextmanager
def two_ranks(model: Path) -> Iterator[MultiprocExecutor]:
    """Ready for steps; at the end nothing of them is left."""
    config = config_of(model, tensor_parallel_size=2)
    executor = MultiprocExecutor(config)
    pids = [child.process.pid for child, _ in executor._ranks if child.process]
    try:
        plan = plan_kv_cache(config, executor.kv_cache_spec(), executor.available_memory())
        executor.initialize_cache(plan)
        yield executor
    finally:
        executor.shutdown()
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    assert not [name for name in os.listdir("/dev/shm") if "vllm" in name]


def send_signal(number: signal.Signals) -> Callable[[MultiprocExecutor], None]:
    def send(executor: MultiprocExecutor) -> None:
        process = executor._ranks[1][0].process
        assert process is not None
        process.send_signal(number)

    return send


def throw(executor: MultiprocExecutor) -> None:
    """Rank 1 alone is given a step that it cannot run, while rank 0 waits for it in its own."""
    unknown = SchedulerOutput([], {}, {"nobody": 1}, {"nobody": 1}, 1, [], [])
    executor._ranks[1][1].send_bytes(encode(RunStep(unknown)))


@pytest.mark.parametrize(
    ("lose", "cause"),
    [
        (send_signal(signal.SIGKILL), "rank 1: the process was killed by SIGKILL"),
        (send_signal(signal.SIGSTOP), "rank 1 does not answer: its process is stopped"),
        (throw, "rank 1 failed: KeyError: 'nobody'"),
    ],
)
def test_a_lost_rank_ends_the_engine(
    model: Path, lose: Callable[[MultiprocExecutor], None], cause: str
) -> None:
    with two_ranks(model) as executor:
        assert len(executor.submit(greedy_step()).get().sampled_token_ids) == 1
        start = time.monotonic()
        lose(executor)
        with pytest.raises(EngineDeadError, match=cause):
            executor.submit(greedy_step("b")).get()
        assert time.monotonic() - start < LIMIT
        assert executor.failure_fd is not None and os.read(executor.failure_fd, 1)
        with pytest.raises(EngineDeadError, match=cause):
            executor.check_health()


def test_a_model_that_cannot_be_divided_is_refused(tmp_path: Path) -> None:
    path = save(make_model("llama", num_attention_heads=3, num_key_value_heads=3), tmp_path)
    with pytest.raises(UsageError, match="3 attention heads do not divide among"):
        MultiprocExecutor(config_of(path, tensor_parallel_size=2))


def test_masks_travel_with_a_step() -> None:
    step = greedy_step()
    bits = np.arange(12, dtype=np.int32).reshape(4, 3)[:2]
    step.token_masks = TokenMasks(["a", "b"], bits)
    arrived = decode(encode(RunStep(step)))
    assert isinstance(arrived, RunStep) and arrived.step.token_masks is not None
    assert np.array_equal(arrived.step.token_masks.bits, bits)
    assert encode(arrived) == encode(RunStep(step))


def test_all_that_do_nothing_are_stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    states = ["S", "S"]
    monkeypatch.setattr(multiproc, "process_sign", lambda pid: ProcessSign(states[pid], 1.0))
    clock = itertools.count(step=multiproc.INTERVAL)
    monkeypatch.setattr(multiproc.time, "monotonic", lambda: next(clock))
    signs = multiproc._Signs([0, 1])
    looks = int(multiproc.STALL_LIMIT / multiproc.INTERVAL) + 2
    assert not any(signs.find_stuck(is_due=False) for _ in range(2 * looks))
    states[0] = "D"
    assert not any(signs.find_stuck(is_due=True) for _ in range(2 * looks))
    states[0] = "S"
    found = [signs.find_stuck(is_due=True) for _ in range(looks)]
    assert found[0] is None and found[-1] == (None, "uses no processor")
    assert looks * multiproc.INTERVAL < LIMIT
