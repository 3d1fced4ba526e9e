"""An engine that sleeps gives memory back, and wakes to the same tokens."""

from __future__ import annotations

import asyncio
import ctypes
import mmap
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.models.checkpoints import make_model, save
from vllm_lite import LLM, AsyncLLM, SamplingParams
from vllm_lite.config.engine_args import EngineArgs
from vllm_lite.config.vllm import VllmConfig
from vllm_lite.errors import RequestError, UsageError
from vllm_lite.kernels.cpu.mapped_memory import (
    Allocations,
    MappedPool,
    map_zeros,
    release_pages,
)
from vllm_lite.log import timeline
from vllm_lite.quantization.storage import stored_weights
from vllm_lite.worker import worker

GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
PROMPTS = [list(range(1, 40)), [5, 6, 7]]
OPTIONS: dict[str, Any] = {"dtype": "float32", "skip_tokenizer_init": True, "max_model_len": 64}
OPTIONS |= {"block_size": 8, "num_gpu_blocks_override": 40, "enable_sleep_mode": True}


def resident(start: int, num_bytes: int) -> int:
    """Bytes from `start` on that take memory: smaps would count neighbours that were joined."""
    pages = (ctypes.c_ubyte * (num_bytes // mmap.PAGESIZE))()
    assert ctypes.CDLL(None).mincore(ctypes.c_void_p(start), ctypes.c_size_t(num_bytes), pages) == 0
    return sum(page & 1 for page in pages) * mmap.PAGESIZE


def test_released_pages_take_no_memory_and_read_as_zeros() -> None:
    size = 12 << 20
    memory = map_zeros(size)
    start = memory.data_ptr()
    memory.fill_(7)
    assert resident(start, size) >= size
    assert release_pages(memory[5:]) >= size
    assert resident(start, size) < 1 << 20
    assert memory.data_ptr() == start and not memory.any()
    memory[-1] = 1
    assert int(memory.sum()) == 1


@pytest.fixture(scope="module", params=["gemma3", "mamba2"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    layers = {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}
    reference = make_model(request.param, **(layers if request.param == "gemma3" else {}))
    return str(save(reference, tmp_path_factory.mktemp(request.param)))


@pytest.mark.parametrize("in_process", [True, False])
def test_an_engine_wakes_to_the_same_tokens(model: str, in_process: bool) -> None:
    with LLM(model, **OPTIONS, disable_frontend_multiprocessing=in_process) as llm:

        def tokens() -> list[Any]:
            outputs = llm.generate(PROMPTS, GREEDY, use_tqdm=False)
            return [list(output.outputs[0].token_ids) for output in outputs]

        before = tokens()
        llm.sleep()
        assert llm.get_stats().is_asleep and not llm.get_stats().num_cached_blocks
        llm.wake_up(tags=["weights"])
        with pytest.raises(RequestError, match=r"sleeps; call wake_up\(\)"):
            tokens()
        llm.wake_up()
        assert not llm.get_stats().is_asleep
        assert tokens() == before
        llm.sleep(level=0)
        assert not llm.get_stats().is_asleep
        llm.wake_up(tags=["kv_cache"])
        assert tokens() == before
        llm.sleep(level=2)
        llm.wake_up(tags=["kv_cache"])
        with pytest.raises(RequestError, match=r"sleeps; call wake_up\(\)"):
            tokens()
        llm.wake_up(tags=["weights"])
        assert tokens() == before
        with pytest.raises(RequestError, match="level must be 0, 1 or 2"):
            llm.sleep(level=3)
        with pytest.raises(RequestError, match="tags must be among weights, kv_cache, got 'all'"):
            llm.wake_up(tags=["all"])


def test_whole_cache_is_released(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tensors: list[torch.Tensor] = []

    def keeping(make: Callable[..., list[tuple[Any, ...]]]) -> Callable[..., list[tuple[Any, ...]]]:
        def kept(*args: Any) -> list[tuple[Any, ...]]:
            made = make(*args)
            tensors.extend(part for one in made for part in one if isinstance(part, torch.Tensor))
            return made

        return kept

    for name in ("allocate_kv_cache", "allocate_states"):
        monkeypatch.setattr(worker, name, keeping(getattr(worker, name)))
    with LLM(model, **OPTIONS, disable_frontend_multiprocessing=True) as llm:
        llm.generate(PROMPTS, GREEDY, use_tqdm=False)
        assert tensors and all(part.any() for part in tensors)
        llm.sleep()
        assert not any(part.any() for part in tensors)


@pytest.mark.parametrize("quantization", [None, "int8"])
def test_weights_are_released_and_read_again_in_place(
    tmp_path: Path, quantization: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    models: list[Any] = []
    load = worker.load_models

    def kept(*args: Any) -> Any:
        loaded = load(*args)
        models.append(loaded.target)
        return loaded

    monkeypatch.setattr(worker, "load_models", kept)
    path = str(save(make_model("llama", hidden_size=64, intermediate_size=96), tmp_path))
    options = {**OPTIONS, "quantization": quantization, "dtype": "bfloat16"}
    with LLM(path, **options, disable_frontend_multiprocessing=True) as llm:
        before = [one.outputs[0].token_ids for one in llm.generate(PROMPTS, GREEDY, use_tqdm=False)]
        stored = stored_weights(models[0])
        held = [weight.data.clone() for weight in stored]
        assert len(held) > 8 and all(one.any() for one in held)
        llm.sleep(level=2)
        assert not any(weight.data.any() for weight in stored)
        llm.wake_up()
        assert all(torch.equal(weight.data, was) for weight, was in zip(stored, held, strict=True))
        after = [one.outputs[0].token_ids for one in llm.generate(PROMPTS, GREEDY, use_tqdm=False)]
        assert after == before


def test_memory_is_filled_again_by_the_same_pieces_only() -> None:
    pool, owner = MappedPool(), Allocations()
    other = pool.take(100)

    def fill(layers: dict[int, list[int]]) -> dict[int, list[torch.Tensor]]:
        taken = {}
        with pool.owned_by(owner):
            for layer, sizes in layers.items():
                pool.begin_layer(layer)
                taken[layer] = [pool.take(size) for size in sizes]
        return taken

    first = fill({1: [1000, 40 << 20], 2: [1000]})
    for piece in (*first[1], *first[2], other):
        piece.fill_(1)
    assert owner.release() >= 100 << 20
    assert not any(piece.any() for piece in (*first[1], *first[2])) and other.all()
    again = fill({2: [1000], 1: [1000, 40 << 20]})
    for layer in (1, 2):
        assert [p.data_ptr() for p in again[layer]] == [p.data_ptr() for p in first[layer]]
    for wrong in ({1: [1000, 5]}, {2: [1000, 7]}, {3: [1000]}):
        with pytest.raises(RuntimeError, match="again"):
            fill(wrong)
    assert pool.take(10).data_ptr() not in (first[1][0].data_ptr(), first[2][0].data_ptr())


def test_threads_never_share_a_piece() -> None:
    pool = MappedPool()
    with ThreadPoolExecutor(8) as threads:
        pieces = list(threads.map(pool.take, [4096] * 4000))
    assert len({piece.data_ptr() for piece in pieces}) == len(pieces)


def test_an_asynchronous_engine_sleeps_once_its_requests_have_ended(model: str) -> None:
    async def run(config: VllmConfig) -> None:
        engine = AsyncLLM.from_vllm_config(config, disable_frontend_multiprocessing=True)

        async def last(name: str) -> Any:
            *_, output = [one async for one in engine.generate(PROMPTS[0], GREEDY, name)]
            return output.outputs[0].token_ids, output.outputs[0].finish_reason

        try:
            task = asyncio.create_task(last("a"))
            await asyncio.sleep(0)
            await engine.sleep(mode="wait")
            assert await engine.is_sleeping() and await engine.is_paused()
            held = asyncio.create_task(last("b"))
            await engine.wake_up()
            assert not await engine.is_sleeping()
            assert await task == await held and (await held)[1] == "length"
            with pytest.raises(RequestError, match="mode must be abort or wait"):
                await engine.sleep(mode="keep")
        finally:
            await engine.shutdown()

    timeline.restart()
    asyncio.run(run(EngineArgs(model=model, **OPTIONS).create_engine_config("llm")))


def test_unsupported_sleep_is_an_error(model: str) -> None:
    plain = OPTIONS | {"enable_sleep_mode": False, "disable_frontend_multiprocessing": True}
    with LLM(model, **plain) as llm, pytest.raises(RequestError, match="--enable-sleep-mode"):
        llm.sleep()


def test_a_gpu_does_not_sleep() -> None:
    from tests.builders import core_config
    from vllm_lite.config.model import ModelConfig

    with pytest.raises(UsageError, match="--enable-sleep-mode: a GPU's memory"):
        core_config(device="cuda", dtype="bfloat16", enable_sleep_mode=True)
    assert ModelConfig(enable_sleep_mode=True).enable_sleep_mode
