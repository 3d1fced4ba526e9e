"""Vectors of a prompt are transformers' last hidden states, bit for bit in any schedule."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from tests.checkpoints import write_hf
from tests.models.checkpoints import make_model, save
from tests.models.test_async_scheduling import EAGER, GRAPHS, on_stand_in
from vllm_lite import LLM, AsyncEngineArgs, AsyncLLM, PoolingParams, SamplingParams
from vllm_lite.config.engine_args import EngineArgs
from vllm_lite.core.scheduler import Scheduler
from vllm_lite.engine.front.sync_llm import LLMEngine
from vllm_lite.engine.link.inproc_client import InprocClient
from vllm_lite.errors import EngineGenerateError, RequestError
from vllm_lite.executor.uniproc import UniprocExecutor
from vllm_lite.outputs import PoolingRequestOutput
from vllm_lite.sampling_params import RequestOutputKind
from vllm_lite.worker.worker import Worker

PROMPTS = [
    [(7 * i * i + 3 * start) % 97 for i in range(length)]
    for start, length in [(0, 40), (1, 5), (2, 1), (3, 17), (0, 44), (4, 64)]
]
RAW = PoolingParams(use_activation=False)
COMMON: dict[str, Any] = {
    "runner": "pooling",
    "dtype": "float32",
    "skip_tokenizer_init": True,
    "max_model_len": 64,
}
IN_PROCESS = {"disable_frontend_multiprocessing": True}
# Chunks of few tokens and blocks for few requests, some of which are preempted; a batch of all.
TIGHT: dict[str, Any] = {"block_size": 8, "num_gpu_blocks_override": 12, "async_scheduling": True}
TIGHT |= {"max_num_batched_tokens": 16, "long_prefill_token_threshold": 5}
TIGHT |= {"scheduler_reserve_full_isl": False}
ROOMY: dict[str, Any] = {"block_size": 32, "num_gpu_blocks_override": 80, "max_num_seqs": 36}


@torch.inference_mode()
def last_hidden(model: PreTrainedModel, ids: list[int]) -> torch.Tensor:
    return model.base_model(torch.tensor([ids])).last_hidden_state[0, -1].float()


def vectors(llm: LLM, params: PoolingParams, repeats: int) -> tuple[list[bytes], int]:
    """Those of PROMPTS, each the same in all repeats, and the tokens that were cached."""
    prompts = [{"prompt_token_ids": ids} for ids in PROMPTS * repeats]
    outputs = llm.encode(prompts, params, use_tqdm=False)
    assert [o.prompt_token_ids for o in outputs] == PROMPTS * repeats
    assert all(o.finished and o.outputs.data.dtype == torch.float32 for o in outputs)
    found = [o.outputs.data.numpy().tobytes() for o in outputs]
    assert found == found[: len(PROMPTS)] * repeats
    return found[: len(PROMPTS)], sum(o.num_cached_tokens or 0 for o in outputs)


# Vectors are the decoder's business, not the family's: one of each kind of cache and of norms.
@pytest.mark.parametrize("family", ["gemma3", "gpt2", "llama", "mamba2", "qwen3_moe"])
def test_no_schedule_changes_a_bit_of_transformers_vectors(family: str, tmp_path: Path) -> None:
    reference = make_model(family)
    want = [last_hidden(reference, prompt) for prompt in PROMPTS]
    is_full = family not in ("gemma3", "mamba2")
    path, seen = str(save(reference, tmp_path)), set[tuple[bytes, ...]]()
    for options in (TIGHT, ROOMY):
        with LLM(path, **COMMON, **IN_PROCESS, **options) as llm:
            for repeats in (1, 6, 1):
                got, num_cached = vectors(llm, RAW, repeats)
                seen.add(tuple(got))
            assert num_cached
            units, _ = vectors(llm, PoolingParams(), 1)
            stats = llm.get_stats()
            assert stats.num_used_blocks == 0
            # Windows and states leave room for all.
            assert bool(stats.num_preemptions) == (options is TIGHT and is_full)
    assert len(seen) == 1
    for vector, unit, expected in zip(got, units, want, strict=True):
        numbers = torch.frombuffer(bytearray(vector), dtype=torch.float32)
        torch.testing.assert_close(numbers, expected, atol=1e-4, rtol=0)
        torch.testing.assert_close(
            torch.frombuffer(bytearray(unit), dtype=torch.float32),
            torch.nn.functional.normalize(numbers, dim=0),
        )


@pytest.mark.parametrize("family", ["llama", "gemma3", "mamba2"])
def test_every_token_of_a_prompt_has_its_vector(family: str, tmp_path: Path) -> None:
    reference = make_model(family)
    path = str(save(reference, tmp_path))
    prompts = [{"prompt_token_ids": ids} for ids in PROMPTS]
    seen = set()
    for options in (TIGHT, ROOMY):
        with LLM(path, **COMMON, **IN_PROCESS, **options) as llm:
            last, _ = vectors(llm, RAW, 1)  # leaves a warm prefix of each
            found = llm.encode(prompts, RAW, use_tqdm=False, pooling_task="token_embed")
            units = llm.encode(prompts, PoolingParams(task="token_embed"), use_tqdm=False)
        assert not any(output.num_cached_tokens for output in found)
        assert [o.outputs.data[-1].numpy().tobytes() for o in found] == last
        for ids, output, unit in zip(PROMPTS, found, units, strict=True):
            with torch.inference_mode():
                want = reference.base_model(torch.tensor([ids])).last_hidden_state[0].float()
            data = output.outputs.data
            torch.testing.assert_close(data, want, atol=1e-4, rtol=0)
            torch.testing.assert_close(
                unit.outputs.data, torch.nn.functional.normalize(data, dim=-1)
            )
        seen.add(tuple(output.outputs.data.numpy().tobytes() for output in found))
    assert len(seen) == 1


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_hf(tmp_path_factory.mktemp("tiny")))


TINY = COMMON | {"load_format": "dummy", "seed": 1}


def by_engine(model: str, worker: Any, **options: Any) -> list[bytes]:
    """The vectors of PROMPTS from an engine with such a worker."""
    config = EngineArgs(model=model, **TINY | options).create_engine_config("llm")
    core = InprocClient(config, lambda config: UniprocExecutor(config, worker))
    engine = LLMEngine(config, core, None)
    for number, ids in enumerate(PROMPTS):
        engine.add_request(str(number), [*ids], RAW)
    found: dict[str, bytes] = {}
    while engine.has_unfinished_requests():
        for output in engine.step():
            assert isinstance(output, PoolingRequestOutput)
            found[output.request_id] = output.outputs.data.numpy().tobytes()
    engine.shutdown()
    return [found[str(number)] for number in range(len(PROMPTS))]


@pytest.mark.parametrize(("kind", "reads"), [("LAST", True), ("MEAN", False), ("CLS", False)])
def test_only_the_last_token_may_stand_behind_prefix_hits(
    kind: str, reads: bool, model: str
) -> None:
    options = TINY | IN_PROCESS | {"pooler_config": {"seq_pooling_type": kind}}
    with LLM(model, **options) as llm:
        first, _ = vectors(llm, RAW, 1)
        again, num_cached = vectors(llm, RAW, 1)
    assert first == again
    assert bool(num_cached) == reads


def test_a_core_in_a_process_of_its_own_gives_vectors(model: str) -> None:
    with LLM(model, **TINY, **IN_PROCESS) as here, LLM(model, **TINY) as there:
        assert vectors(here, RAW, 1) == vectors(there, RAW, 1)
        embedding = there.embed({"prompt_token_ids": PROMPTS[0]}, use_tqdm=False)[0].outputs
    assert embedding.hidden_size == len(embedding.embedding) > 1
    assert sum(x * x for x in embedding.embedding) == pytest.approx(1)


def test_an_asynchronous_caller_gets_vectors(model: str) -> None:
    async def encode() -> list[Any]:
        config = AsyncEngineArgs(model=model, **TINY).create_engine_config("llm")
        engine = AsyncLLM.from_vllm_config(config, **IN_PROCESS)
        try:
            with pytest.raises(RequestError, match="generates no text"):
                engine.generate(PROMPTS[0], SamplingParams(), "text")
            return [output async for output in engine.encode(PROMPTS[0], RAW, "one")]
        finally:
            await engine.shutdown()

    (output,) = asyncio.run(encode())
    with LLM(model, **TINY, **IN_PROCESS) as llm:
        assert output.outputs.data.tolist() == llm.encode(PROMPTS[0], RAW)[0].outputs.data.tolist()


@pytest.mark.parametrize("graphs", [EAGER, GRAPHS], ids=["eager", "graphs"])
def test_a_device_gives_the_same_vectors(model: str, graphs: dict[str, Any]) -> None:
    assert by_engine(model, on_stand_in, **graphs) == by_engine(model, Worker)


def test_a_vector_that_is_not_finite_fails_alone(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, broken = Scheduler.update_from_output, []

    def update(self: Scheduler, step: Any, output: Any) -> Any:
        broken.append(dict(output.errors))
        return real(self, step, output)

    monkeypatch.setattr(Scheduler, "update_from_output", update)
    with LLM(model, **TINY, **IN_PROCESS) as llm:
        runner = llm.llm_engine._core.core._executor._worker._runner  # type: ignore[attr-defined]
        forward = runner._forward

        def poisoned(batch: Any) -> Any:
            computed = forward(batch)
            computed.hidden[0] = float("nan")
            return computed

        runner._forward = poisoned
        with pytest.raises(EngineGenerateError, match="no usable answer"):
            llm.encode([[5], [6, 7]], use_tqdm=False)
        runner._forward = forward
        assert sum(map(len, broken)) == 1
        assert len(llm.encode([[5], [6, 7]], use_tqdm=False)) == 2


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"dimensions": 0}, "dimensions must be a whole number from 1"),
        ({"step_tag_id": -1}, "step_tag_id must be a whole number from 0"),
        ({"returned_token_ids": []}, "returned_token_ids must be a list"),
        ({"late_interaction_params": {}}, "late_interaction_params are not available"),
        ({"extra_kwargs": {"a": 1}}, "extra_kwargs has one key"),
        ({"extra_kwargs": {"compressed_token_type_ids": -1}}, "extra_kwargs has one key"),
        ({"truncation_side": "middle"}, "truncation_side must be"),
        ({"output_kind": RequestOutputKind.DELTA}, "output_kind must be FINAL_ONLY"),
        ({"use_activation": 3}, "use_activation must be true or false"),
        ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens must be"),
        ({"task": "score"}, "task 'score' is not available: use classify"),
        ({"task": "clasify"}, "task 'clasify' is not available: use one of embed, "),
        ({"use_activation": True, "normalize": False}, "differ"),
    ],
)
def test_unsupported_field_is_refused_by_name(params: dict[str, Any], words: str) -> None:
    with pytest.raises(RequestError, match=words) as caught:
        PoolingParams(**params)
    assert caught.value.param in params


def test_prompts_and_tasks_that_do_not_fit_are_refused(model: str) -> None:
    with LLM(model, **TINY, **IN_PROCESS) as llm:
        with pytest.raises(RequestError, match=r"context length is 64 .* prompt has 65; shorten"):
            llm.encode([1] * 65)
        with pytest.raises(RequestError, match="token_classify"):
            llm.encode([1], pooling_task="token_classify")
        reads = PoolingParams(skip_reading_prefix_cache=False, task="token_embed")
        for params, words in [
            (PoolingParams(dimensions=8), "it is no Matryoshka model"),
            (PoolingParams(step_tag_id=8), "step_tag_id needs tok_pooling_type STEP"),
            (reads, "token_embed reads every token"),
        ]:
            with pytest.raises(RequestError, match=words):
                llm.encode([1], params)
        with pytest.raises(RequestError, match="task is token_embed and pooling_task embed"):
            llm.embed([1], PoolingParams(task="token_embed"))
        with pytest.raises(RequestError, match="--runner pooling and generates no text"):
            llm.generate([1])
        with pytest.raises(RequestError, match="2 entries for 1 prompts"):
            llm.encode([[1]], [RAW, RAW])
        kept = PoolingParams(truncate_prompt_tokens=-1)
        cut = llm.encode([7] * 70, kept, use_tqdm=False)[0]
        assert cut.prompt_token_ids == [7] * 64 and kept.use_activation is None
        skips = PoolingParams(skip_reading_prefix_cache=True)
        assert not llm.encode([7] * 64, skips, use_tqdm=False)[0].num_cached_tokens
    with (
        LLM(model, **TINY | IN_PROCESS | {"runner": "generate"}) as llm,
        pytest.raises(RequestError, match="start it with --convert embed"),
    ):
        llm.encode([1])
