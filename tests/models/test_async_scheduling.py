"""Steps that run ahead of their answers: the same tokens, whatever a request asks for.

On the CPU's worker in a thread, and on a GPU's worker with a stand-in for the device: inputs are
prepared and batches padded as there, the operations being the CPU's, or the GPU's interpreted.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from tests.checkpoints import write_hf
from tests.stand_in_device import StandInDevice
from vllm_lite import LLM, SamplingParams
from vllm_lite.config.engine_args import EngineArgs
from vllm_lite.config.vllm import VllmConfig
from vllm_lite.core.step import EngineCoreRequest
from vllm_lite.engine.core.engine_core import EngineCore
from vllm_lite.executor.uniproc import UniprocExecutor
from vllm_lite.kernels import dispatch
from vllm_lite.outputs import RequestOutput
from vllm_lite.worker.gpu_worker import GpuWorker
from vllm_lite.worker.interface import StepWorker
from vllm_lite.worker.worker import Worker

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


IN_PROCESS = {"disable_frontend_multiprocessing": True}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_gpu_blocks_override": 14, **IN_PROCESS},
        {"enable_prefix_caching": False, **IN_PROCESS},
    ],
)
def test_async_scheduling_changes_no_output(model: str, options: dict[str, Any]) -> None:
    in_turn, _ = run(model, **options)
    ahead, num_preemptions = run(model, async_scheduling=True, **options)
    assert ahead == in_turn
    assert bool(num_preemptions) == ("num_gpu_blocks_override" in options)


def on_stand_in(config: VllmConfig) -> GpuWorker:
    """A GPU's worker, whose device is the CPU."""
    return GpuWorker(config, StandInDevice())


def serve(
    model: str, make_worker: Callable[[VllmConfig], StepWorker], **options: Any
) -> dict[str, list[Any]]:
    """A core's outputs of each request; new ones come while others run."""
    settings = {"dtype": "float32", "max_model_len": 64, "load_format": "dummy", "seed": 1}
    settings |= {"skip_tokenizer_init": True, "block_size": 8, "max_num_batched_tokens": 24}
    num_requests = options.pop("requests", 2 * len(PROMPTS))
    most_tokens = options.pop("most_tokens", 20)
    args = EngineArgs(model=model, **(settings | {"max_num_seqs": 6} | options))
    core = EngineCore(
        args.create_engine_config(), lambda config: UniprocExecutor(config, make_worker)
    )
    kinds = [
        structs.replace(one, max_tokens=min(one.max_tokens or 0, most_tokens)) for one in KINDS
    ]
    waiting = [
        EngineCoreRequest(f"{turn}-{i}", ids, params, [2], 0.0)
        for turn in range(2)
        for i, (ids, params) in enumerate(zip(PROMPTS, kinds, strict=True))
    ][:num_requests]
    told: dict[str, list[Any]] = {request.request_id: [[], [], [], []] for request in waiting}
    while waiting or core.has_work():
        core.add_requests(waiting[:1])
        del waiting[:1]
        for output in core.step().outputs:
            tokens, logprobs, prompt_logprobs, ends = told[output.request_id]
            tokens += output.new_token_ids
            logprobs += output.new_logprobs or []
            prompt_logprobs += output.new_prompt_logprobs or []
            if output.finish_reason is not None:
                ends += [output.finish_reason, output.stop_reason]
    core.shutdown()
    return told


EAGER: dict[str, Any] = {"enforce_eager": True}
GRAPHS: dict[str, Any] = {"cudagraph_capture_sizes": [1, 2, 5]}
LAZY: dict[str, Any] = {**GRAPHS, "compilation_config": {"cudagraph_capture_lazily": True}}


@pytest.mark.parametrize("graphs", [EAGER, GRAPHS, LAZY], ids=["eager", "graphs", "lazy"])
@pytest.mark.parametrize("options", [{}, {"num_gpu_blocks_override": 14}])
def test_a_device_that_runs_ahead_gives_the_same_tokens(
    model: str, graphs: dict[str, Any], options: dict[str, Any]
) -> None:
    in_turn = serve(model, Worker, **options)
    assert serve(model, on_stand_in, **graphs, **options) == in_turn
    assert serve(model, on_stand_in, async_scheduling=True, **graphs, **options) == in_turn


def test_the_gpus_own_kernels_give_the_same_tokens_through_its_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("triton")
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1}
    model = str(write_hf(tmp_path, num_hidden_layers=1, **heads))
    few: dict[str, Any] = {"requests": 2, "max_num_seqs": 2, "most_tokens": 8}
    plain = serve(model, Worker, **few)
    monkeypatch.setenv("VLLM_LITE_CPU_ISA", "triton")
    try:
        interpreted = serve(model, Worker, **few)
        few["cudagraph_capture_sizes"] = [2]
        on_device = serve(model, on_stand_in, async_scheduling=True, **few)
    finally:
        monkeypatch.undo()
        dispatch.select_ops("cpu")
    assert on_device == interpreted
    assert {name: told[0] for name, told in on_device.items()} == {
        name: told[0] for name, told in plain.items()
    }
