"""A GPU's worker on a stand-in: its memory is shared out, and what fails says what to change."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from tests.checkpoints import write_hf
from tests.stand_in_device import MIB, NoWaits, StandInDevice, StandInFault
from vllm_lite.config.engine_args import EngineArgs
from vllm_lite.config.vllm import VllmConfig
from vllm_lite.core.kv_plan import KVCachePlan, plan_kv_cache
from vllm_lite.core.step import NewRequestData, SchedulerOutput
from vllm_lite.errors import EngineDeadError, UsageError
from vllm_lite.executor.select import make_executor
from vllm_lite.kernels import dispatch
from vllm_lite.sampling_params import SamplingParams
from vllm_lite.worker import gpu_worker
from vllm_lite.worker.gpu_worker import GpuWorker
from vllm_lite.worker.trial_steps import trial_steps

SIZES = [1, 2, 4]


@pytest.fixture
def model(tmp_path: Path) -> str:
    return str(write_hf(tmp_path))


def make_config(model: str, **options: Any) -> VllmConfig:
    settings = {"max_model_len": 64, "max_num_seqs": 4, "block_size": 8, "dtype": "float32"}
    settings |= {"gpu_memory_utilization": 0.5, "cudagraph_capture_sizes": SIZES}
    settings |= {"compilation_config": {"cudagraph_mode": "FULL_DECODE_ONLY"}}
    args = EngineArgs(
        model=model, load_format="dummy", skip_tokenizer_init=True, **(settings | options)
    )
    return args.create_engine_config()


def started(config: VllmConfig, device: StandInDevice) -> tuple[GpuWorker, KVCachePlan]:
    worker = GpuWorker(config, device)
    plan = plan_kv_cache(config, worker.kv_cache_spec(), worker.available_memory())
    worker.initialize_cache(plan)
    return worker, plan


def step(worker: GpuWorker) -> dict[str, list[int]]:
    new = NewRequestData("r", [1, 2, 3], SamplingParams(temperature=0), [[1]], 0)
    first = worker.submit(SchedulerOutput([new], {}, {"r": 3}, {"r": 1}, 3, [], []))
    return first.get().sampled_token_ids


def test_cache_gets_memory_left_by_weights_step_and_graphs(model: str) -> None:
    device = StandInDevice()
    worker = GpuWorker(make_config(model), device)
    # Half of 1024, less weights, the step, and three graphs.
    assert worker.available_memory() == (512 - 100 - 50 - 20 - 2 * 2) * MIB
    # Of one and two requests with 3 drafts: four does not fit into a step of 12 tokens.
    drafts = {"method": "ngram", "num_speculative_tokens": 3}
    options: dict[str, Any] = {"speculative_config": drafts, "max_num_batched_tokens": 12}
    drafting = GpuWorker(make_config(model, **options), StandInDevice())
    assert drafting.available_memory() == (512 - 100 - 50 - 20 - 4 * 2) * MIB
    eager = GpuWorker(make_config(model, enforce_eager=True), StandInDevice())
    assert eager.available_memory() == (512 - 100 - 50) * MIB


def test_a_cache_is_never_larger_than_the_requests_can_fill(model: str) -> None:
    _, plan = started(make_config(model), StandInDevice())
    assert (plan.num_blocks - 1) * plan.block_size == 4 * 64


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Any:
    """The package's log, as `caplog`."""
    monkeypatch.setattr(logging.getLogger("vllm_lite"), "propagate", True)
    caplog.set_level(logging.INFO)
    return caplog


@pytest.mark.parametrize("lazily", [False, True])
def test_graphs_are_captured_at_start_or_when_first_met(
    model: str, lazily: bool, log: pytest.LogCaptureFixture
) -> None:
    device = StandInDevice()
    lazily_too = {"cudagraph_mode": "FULL_DECODE_ONLY", "cudagraph_capture_lazily": lazily}
    options = {"compilation_config": lazily_too}
    worker, _ = started(make_config(model, **options), device)
    captured = [text for text in log.messages if text.startswith("Captured ")]
    assert device.num_graphs == (0 if lazily else 3) and len(captured) == (not lazily)
    if captured:
        words = "Captured 3 graphs of decode steps, of 1 to 4 requests, and 0 of longer ones, in "
        assert captured[0].startswith(words) and captured[0].endswith(" and 0.02 GiB")
    assert 0 <= step(worker)["r"][0] < 100
    again = SchedulerOutput([], {}, {"r": 1}, {"r": 1}, 1, [], [])
    worker.submit(again).get()
    assert device.num_graphs == (1 if lazily else 3)
    (table,) = [text for text in log.messages if text.startswith("GPU memory in GiB:")]
    assert "weights" in table and "KV cache" in table
    assert "stand-in, float32" in worker.describe() and "0.10 GiB" in worker.describe()


def test_too_little_memory_names_the_option_to_change(model: str) -> None:
    with pytest.raises(
        UsageError, match=r"--gpu-memory-utilization 0\.5.* set it to 0\.48 or less"
    ):
        GpuWorker(make_config(model), StandInDevice(others=530 * MIB))
    small = GpuWorker(make_config(model), StandInDevice(total=300 * MIB))
    with pytest.raises(UsageError, match=r"set --gpu-memory-utilization to 0\.59"):
        small.available_memory()
    device = StandInDevice()
    device.most_graphs = 1
    with pytest.raises(UsageError, match=r"--max-num-batched-tokens 256 .* set .* to 128"):
        GpuWorker(make_config(model, max_num_batched_tokens=256), device).available_memory()
    device.most_graphs = 2
    with pytest.raises(UsageError, match=r"the graphs .*--max-cudagraph-capture-size"):
        started(make_config(model), device)


def test_a_broken_device_ends_the_engine_with_its_cause(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker, _ = started(make_config(model), StandInDevice())

    def fail(*_: object) -> None:
        raise StandInFault("an illegal access\nmore")

    monkeypatch.setattr(gpu_worker.ModelRunner, "submit", fail)
    with pytest.raises(EngineDeadError, match=r"the stand-in failed: an illegal access$"):
        step(worker)


@pytest.mark.parametrize(
    ("params", "waits"),
    [
        ({"logit_bias": {3: 5.0}, "min_tokens": 9, "allowed_token_ids": [2, 3, 4]}, False),
        ({"temperature": 1.0, "top_p": 0.9, "bad_words_token_ids": [[4]]}, False),
        ({"bad_words_token_ids": [[4], [7, 8]]}, True),
        ({"presence_penalty": 0.5}, True),
    ],
)
def test_a_step_waits_for_ids_only_where_its_logits_depend_on_them(
    model: str, params: dict[str, Any], waits: bool
) -> None:
    worker, _ = started(make_config(model), StandInDevice())
    sampling = SamplingParams(**({"temperature": 0} | params))
    new = NewRequestData("r", [1, 2, 3], sampling, [[1]], 0)
    steps = [SchedulerOutput([new], {}, {"r": 3}, {"r": 1}, 3, [], [])]
    steps += [SchedulerOutput([], {}, {"r": 1}, {"r": 1}, 1, [], [])]
    answers = [worker.submit(step) for step in steps]
    assert worker._runner is not None
    assert len(worker._runner._unread) == (1 if waits else 2)
    assert all(answer.get().sampled_token_ids["r"] for answer in answers)


@pytest.mark.parametrize("mode", ["raw_logprobs", "processed_logits"])
@pytest.mark.parametrize(
    ("params", "num_reported"),
    [
        ({"logprobs": 0}, 1),
        ({"logprobs": 3, "logit_bias": {3: 5.0}}, 4),
        ({"logprobs": -1, "temperature": 1.0, "top_p": 0.9}, None),
        ({"logprob_token_ids": [7, 4, 7], "temperature": 1.0}, 4),
    ],
)
def test_logprobs_are_read_with_the_answer(
    model: str, params: dict[str, Any], num_reported: int | None, mode: str
) -> None:
    config = make_config(model, logprobs_mode=mode, max_logprobs=-1)
    worker, _ = started(config, StandInDevice())
    sampling = SamplingParams(**({"temperature": 0} | params))
    new = NewRequestData("r", [1, 2, 3], sampling, [[1]], 0)
    steps = [SchedulerOutput([new], {}, {"r": 3}, {"r": 1}, 3, [], [])]
    steps += [SchedulerOutput([], {}, {"r": 1}, {"r": 1}, 1, [], [])]
    with NoWaits():
        answers = [worker.submit(step) for step in steps]
    for output in (answer.get() for answer in answers):
        (entry,) = output.logprobs["r"]
        assert entry.token_ids[0] == output.sampled_token_ids["r"][0]
        assert len(entry.token_ids) == (num_reported or 1 + config.facts.vocab_size)
        assert len(entry.logprobs) == len(entry.token_ids) and entry.rank >= 1


PLAIN = {"temperature": 0.8, "top_k": 9, "top_p": 0.9, "min_p": 0.01, "seed": 3}


@pytest.mark.parametrize(
    ("params", "num_appended"),
    [({"temperature": 0.0}, 0), (PLAIN, 0), ({"logprobs": 1}, 1), ({"logit_bias": {3: 5.0}}, 1)],
)
def test_a_step_of_rows_that_are_only_drawn_ends_with_its_graph_and_others_use_its_logits(
    model: str, monkeypatch: pytest.MonkeyPatch, params: dict[str, Any], num_appended: int
) -> None:
    worker, _ = started(make_config(model), StandInDevice())
    new = NewRequestData("r", [1, 2, 3], SamplingParams(**params), [[1]], 0)
    worker.submit(SchedulerOutput([new], {}, {"r": 3}, {"r": 1}, 3, [], [])).get()
    runner = worker._runner
    assert runner is not None
    called: list[str] = []
    for owner, name in ((runner._model, "compute_logits"), (runner._inputs, "append")):
        real = getattr(owner, name)

        def watched(*args: Any, name: str = name, real: Any = real) -> Any:
            called.append(name)
            return real(*args)

        monkeypatch.setattr(owner, name, watched)
    worker.submit(SchedulerOutput([], {}, {"r": 1}, {"r": 1}, 1, [], [])).get()
    assert called == ["compute_logits", *["append"] * num_appended]


def test_the_largest_step_is_as_large_as_a_step_may_be(model: str) -> None:
    config = make_config(model, max_num_batched_tokens=30, max_num_seqs=4)
    largest, *small = trial_steps(config)
    assert largest.total_num_scheduled_tokens == 30 and len(largest.new_requests) == 4
    assert len(largest.new_requests[0].prompt_token_ids) == 64
    cut = make_config(model, max_num_batched_tokens=1000, max_num_seqs=4)
    assert trial_steps(cut)[0].total_num_scheduled_tokens == 4 * 64
    numbers = [step.total_num_scheduled_tokens for step in small]
    # Shared by up to four requests; a prompt beside a token; one token, two and both of these
    # behind contexts of 64 tokens.
    assert numbers == [7, 1, 2, 3, 4, 5, 16, 17, 17, 1, 2, 17]
    assert [len(step.new_requests) for step in small] == [4, 1, 2, 3, 4, 4, 4, 4, 2, 1, 1, 2]
    for step in (largest, *small):
        assert sum(step.num_scheduled_tokens.values()) == step.total_num_scheduled_tokens
        for new in step.new_requests:
            # All of them sample.
            count = step.num_scheduled_tokens[new.request_id]
            assert new.num_computed_tokens + count == len(new.prompt_token_ids)


def test_the_steps_at_start_sample_by_every_kernel(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = GpuWorker(make_config(model), StandInDevice())
    seen: set[tuple[str, bool]] = set()
    for name in ("apply_token_mask", "greedy_tokens", "sample_tokens", "token_logprobs"):
        real = getattr(dispatch.ops(), name)

        def watched(*args: Any, name: str = name, real: Any = real) -> Any:
            # With and without candidates, log-probabilities have a kernel each.
            seen.add((name, name == "token_logprobs" and args[3] > 0))
            return real(*args)

        monkeypatch.setattr(dispatch.ops(), name, watched)
    worker.available_memory()
    plain = {(name, False) for name in ("apply_token_mask", "greedy_tokens", "sample_tokens")}
    assert seen == plain | {("token_logprobs", False), ("token_logprobs", True)}


def test_a_gpu_is_asked_for_and_missing_is_one_error(model: str) -> None:
    config = make_config(model)
    object.__setattr__(config, "device", "cuda")
    with pytest.raises(UsageError, match=r"--device cuda: .*--device cpu") as caught:
        make_executor(config)
    assert "\n" not in str(caught.value)
