"""A server that pools obeys what a server of text does: bounds, shares, aborts, health, metrics.

Over a real engine, so that queue and counters are the real ones.
"""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from tests.models.encoders.cases import make_encoder
from tests.server.harness import Connection, error_of, http
from tests.server.test_disconnect_engine import Stepper, check_free, until
from tests.unit.engine.engines import async_engine
from vllm_lite import AsyncEngineArgs, AsyncLLM
from vllm_lite.config.pooling import PoolingFacts
from vllm_lite.config.server import ServerConfig
from vllm_lite.server.app import build_app

PATH = "/v1/embeddings"
# Two numbers, as the scripted model gives.
FACTS = PoolingFacts(size=2)


def sample(engine: AsyncLLM, name: str, **labels: str) -> float | None:
    assert engine.registry is not None
    own = {"model_name": "tiny", "engine": "0", **labels}
    return engine.registry.get_sample_value(f"vllm:{name}", own)


async def test_metrics_count_pooled_prompts_and_no_tokens() -> None:
    async with async_engine(pooling=FACTS) as (engine, _):
        app = build_app(engine, ServerConfig())
        async with http(app=app) as session:
            for given in ([1, 2, 3], [[4] * 10, [5] * 20]):
                assert (await session.post(PATH, json={"input": given})).status_code == 200
            text = (await session.get("/metrics")).text
        assert "vllm:request_success_total" in text
        assert sample(engine, "request_success_total", finished_reason="stop") == 3
        assert sample(engine, "prompt_tokens_total") == 33
        assert sample(engine, "generation_tokens_total") == 0
        assert sample(engine, "request_prompt_tokens_sum") == 33
        for name in ("e2e_request_latency", "request_queue_time", "request_prefill_time"):
            assert sample(engine, f"{name}_seconds_count") == 3
        assert sample(engine, "request_inference_time_seconds_count") == 3
        for name in ("time_to_first_token", "inter_token_latency", "request_decode_time"):
            assert sample(engine, f"{name}_seconds_count") == 0
        assert sample(engine, "request_time_per_output_token_seconds_count") == 0


async def test_too_many_waiting_inputs_are_answered_429() -> None:
    stepper = Stepper()
    limits: dict[str, Any] = {"max_num_seqs": 1, "max_num_queued_reqs": 2}
    async with async_engine(step=stepper, pooling=FACTS, **limits) as (engine, _):
        app = build_app(engine, ServerConfig())
        async with http(app=app) as session:
            first = asyncio.create_task(session.post(PATH, json={"input": [1, 2]}))
            await until(lambda: len(stepper.steps) > 0)
            waiting = asyncio.create_task(session.post(PATH, json={"input": [[3], [4]]}))
            await until(lambda: engine._outputs.num_unfinished == 3)
            refused = await session.post(PATH, json={"input": [5]})
            assert refused.status_code == 429 and "retry-after" in refused.headers
            assert "max-num-queued-reqs" in error_of(refused)["message"]
            stepper.release()
            for task in (first, waiting):
                assert (await task).status_code == 200
            assert (await session.post(PATH, json={"input": [5]})).status_code == 200


async def test_a_client_that_was_served_least_is_next() -> None:
    stepper = Stepper()
    fair: dict[str, Any] = {"scheduling_policy": "fair", "max_num_seqs": 1}
    async with async_engine(step=stepper, pooling=FACTS, **fair) as (engine, _):
        app = build_app(engine, ServerConfig())
        async with http(app=app) as session:
            flood = {"input": [[i] * 9 for i in range(1, 9)], "user": "flood"}
            tasks = [asyncio.create_task(session.post(PATH, json=flood))]
            await until(lambda: engine._outputs.num_unfinished == 8 and len(stepper.steps) > 0)
            late = {"input": [99, 99], "user": "late"}
            tasks.append(asyncio.create_task(session.post(PATH, json=late)))
            await until(lambda: engine._outputs.num_unfinished == 9)
            stepper.release()
            replies = await asyncio.gather(*tasks)
        assert {reply.status_code for reply in replies} == {200}
        lengths = [step.total_num_scheduled_tokens for step in stepper.steps]
        assert sorted(filter(None, lengths)) == [2] + [9] * 8 and 2 in lengths[:3]


async def test_a_client_that_leaves_frees_its_inputs() -> None:
    stepper = Stepper()
    async with async_engine(step=stepper, pooling=FACTS, max_num_seqs=2) as (engine, _):
        app = build_app(engine, ServerConfig())
        leaver = Connection(app, PATH, {"input": [[7] * 60] * 5})
        await until(lambda: engine._outputs.num_unfinished == 5 and len(stepper.steps) > 0)
        await leaver.leave()
        stepper.release()
        await check_free(engine)
        assert sample(engine, "request_success_total", finished_reason="abort") == 5
        async with http(app=app) as session:
            assert (await session.get("/health")).status_code == 200
            assert (await session.post(PATH, json={"input": [1]})).status_code == 200


async def test_health_of_a_server_that_pools_follows_its_engine() -> None:
    async with async_engine(pooling=FACTS) as (engine, executor):
        app = build_app(engine, ServerConfig())
        async with http(app=app) as session:
            executor.made.raise_next = RuntimeError("one step")
            assert (await session.post(PATH, json={"input": [1]})).status_code == 500
            assert (await session.get("/health")).status_code == 200
            executor.made.raise_next = SystemExit("the core")
            assert (await session.post(PATH, json={"input": [1]})).status_code == 500
            assert (await session.get("/health")).status_code == 503


def write_overflowing(path: Path, ids: list[int]) -> None:
    """An encoder with finite weights; of these ids alone the vector grows to infinity."""
    encoder = make_encoder("BertModel")
    encoder.save_pretrained(path)
    with torch.inference_mode():
        first = encoder(torch.tensor([ids])).last_hidden_state[0, 0]
    # Only what resembles `first` passes; the next two layers multiply it.
    direction, large = 1e14 * first / first.norm(), 1e14
    passing = {"linear.weight": direction[None], "linear.bias": -0.9 * large * first.norm()[None]}
    growing = {"linear.weight": torch.tensor([[large]]), "linear.bias": torch.ones(1)}
    modules = [("", "Transformer"), ("1_Pooling", "Pooling")]
    for number, tensors in enumerate((passing, growing, growing), 2):
        folder = path / f"{number}_Dense"
        folder.mkdir()
        save_file(tensors, folder / "model.safetensors")
        rows, columns = tensors["linear.weight"].shape
        relu = {"activation_function": "torch.nn.ReLU"}
        stated = {"in_features": columns, "out_features": rows, **relu}
        (folder / "config.json").write_text(json.dumps(stated))
        modules.append((folder.name, "Dense"))
    (path / "1_Pooling").mkdir()
    (path / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode": "cls"}))
    kinds = [{"path": p, "type": f"sentence_transformers.models.{kind}"} for p, kind in modules]
    (path / "modules.json").write_text(json.dumps(kinds))


async def test_an_input_whose_numbers_overflow_fails_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(logging.getLogger("vllm_lite"), "propagate", True)
    given = [[5, 6, 7], [5, 100], [8] * 40]
    write_overflowing(tmp_path, given[1])
    args = AsyncEngineArgs(model=str(tmp_path), dtype="float32", skip_tokenizer_init=True)
    config = args.create_engine_config()
    engine = AsyncLLM.from_vllm_config(config, disable_frontend_multiprocessing=True)
    try:
        async with http(app=build_app(engine, ServerConfig())) as session:
            replies = await asyncio.gather(
                *(session.post(PATH, json={"input": ids}) for ids in given)
            )
            assert [reply.status_code for reply in replies] == [200, 500, 200]
            assert "failed inside the engine" in error_of(replies[1])["message"]
            assert "it is not finite" in caplog.text
            again = await session.post(PATH, json={"input": given[0]})
            assert again.json()["data"] == replies[0].json()["data"]
            assert (await session.get("/health")).status_code == 200
    finally:
        await engine.shutdown()
