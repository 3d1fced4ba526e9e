"""Steps that run ahead of their answers: the same tokens, whatever a request asks for.

On the CPU's worker in a thread, and on a stand-in for a device: its runner, with inputs prepared
and batches padded as there, the operations being the CPU's.
"""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

from tests.checkpoints import write_hf
from vllm_lite import LLM, SamplingParams
from vllm_lite.config.engine_args import EngineArgs
from vllm_lite.core.kv_plan import KVCachePlan
from vllm_lite.core.step import EngineCoreRequest
from vllm_lite.engine.core import EngineCore
from vllm_lite.executor.uniproc import UniprocExecutor
from vllm_lite.models.interfaces import CausalLM
from vllm_lite.outputs import RequestOutput
from vllm_lite.worker.device_runner import DeviceRunner
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


@pytest.mark.parametrize(
    "options", [{}, {"num_gpu_blocks_override": 14}, {"enable_prefix_caching": False}]
)
def test_running_ahead_changes_nothing_that_is_told(model: str, options: dict[str, Any]) -> None:
    in_turn, _ = run(model, **options)
    ahead, num_preemptions = run(model, async_scheduling=True, **options)
    assert ahead == in_turn
    assert bool(num_preemptions) == ("num_gpu_blocks_override" in options)


class StandIn(Worker):
    """A worker whose steps are given out as to a device."""

    graph_sizes: ClassVar[tuple[int, ...]] = ()

    def _make_runner(self, plan: KVCachePlan, model: CausalLM) -> DeviceRunner:
        return DeviceRunner(self._config, plan, model, self._device, self.graph_sizes)


def serve(model: str, make_worker: type[Worker], **options: Any) -> dict[str, list[Any]]:
    """What a core tells of each request; new ones come while others run."""
    settings = {"dtype": "float32", "max_model_len": 64, "load_format": "dummy", "seed": 1}
    settings |= {"skip_tokenizer_init": True, "block_size": 8, "max_num_batched_tokens": 24}
    args = EngineArgs(model=model, **(settings | {"max_num_seqs": 6} | options))
    core = EngineCore(
        args.create_engine_config(), lambda config: UniprocExecutor(config, make_worker)
    )
    waiting = [
        EngineCoreRequest(f"{turn}-{i}", ids, params, [2], 0.0)
        for turn in range(2)
        for i, (ids, params) in enumerate(zip(PROMPTS, KINDS, strict=True))
    ]
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


@pytest.mark.parametrize("sizes", [(), (1, 2, 5)])
@pytest.mark.parametrize("options", [{}, {"num_gpu_blocks_override": 14}])
def test_a_device_that_runs_ahead_gives_the_same_tokens(
    model: str, monkeypatch: pytest.MonkeyPatch, sizes: tuple[int, ...], options: dict[str, Any]
) -> None:
    monkeypatch.setattr(StandIn, "graph_sizes", sizes)
    in_turn = serve(model, Worker, **options)
    assert serve(model, StandIn, **options) == in_turn
    assert serve(model, StandIn, async_scheduling=True, **options) == in_turn
