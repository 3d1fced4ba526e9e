"""OpenAI's batches on a real server: beside clients, across processes, and across a kill."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from openai import BadRequestError, OpenAI

from tests.e2e.server_process import ServerProcess

pytestmark = pytest.mark.slow

OPTIONS = ("--max-model-len", "2048", "--num-gpu-blocks-override", "2000")
ENDED = ("completed", "failed", "expired", "cancelled")


def rows(count: int, tokens: int = 8) -> bytes:
    found = b""
    for i in range(count):
        message = {"role": "user", "content": f"Tell me a story about the number {i}."}
        body = {"messages": [message], "max_tokens": tokens, "temperature": 0}
        row = {"custom_id": f"r{i}", "url": "/v1/chat/completions", "method": "POST", "body": body}
        found += json.dumps(row).encode() + b"\n"
    return found


def begin(client: OpenAI, content: bytes) -> Any:
    file = client.files.create(file=("rows.jsonl", content), purpose="batch")
    return client.batches.create(
        input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
    )


def wait(client: OpenAI, batch: Any, num_done: int | None = None) -> Any:
    """The batch, once so many of its rows are done, or all."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        batch = client.batches.retrieve(batch.id)
        if batch.status in ENDED or (num_done and batch.request_counts.completed >= num_done):
            return batch
        time.sleep(0.1)
    raise TimeoutError(batch.status)


def first_token(client: OpenAI, index: int) -> float:
    """Seconds until a chat's first token."""
    began = time.monotonic()
    message = {"role": "user", "content": f"What comes after {index}?"}
    stream = client.chat.completions.create(
        model="demo", messages=[message], max_tokens=8, stream=True
    )
    for chunk in stream:
        if chunk.choices and chunk.choices[0].delta.content:
            took = time.monotonic() - began
            stream.close()
            return took
    raise AssertionError("no token came")


def test_a_killed_server_s_batch_goes_on_and_any_process_tells_of_it(tmp_path: Path) -> None:
    options = (*OPTIONS, "--batch-storage-dir", str(tmp_path), "--api-server-count", "2")
    with ServerProcess(*options) as server:
        # Without connections kept, either process may answer.
        headers = {"Connection": "close"}
        client = OpenAI(base_url=f"{server.url}/v1", api_key="x", default_headers=headers)
        batch = wait(client, begin(client, rows(120)), num_done=20)
        assert batch.status == "in_progress"
        server.kill()
    journal = next((tmp_path / "batches").glob("*.journal")).read_bytes().splitlines()
    with ServerProcess(*options) as server:
        client = OpenAI(base_url=f"{server.url}/v1", api_key="x", default_headers=headers)
        batch = wait(client, batch)
        assert (batch.status, batch.request_counts.completed) == ("completed", 120)
        results = client.files.content(batch.output_file_id).text.splitlines()
        assert [json.loads(one)["custom_id"] for one in results] == [f"r{i}" for i in range(120)]
        # What the first server answered was not asked of the second.
        asked = server.metric("vllm:request_success_total")
        assert asked == 120 - (len(journal) - 1) < 110
        stopped = begin(client, rows(200))
        client.batches.cancel(stopped.id)
        for _ in range(3):
            # Refused once it has ended, by whichever process is asked.
            with suppress(BadRequestError):
                client.batches.cancel(stopped.id)
        assert wait(client, stopped).status == "cancelled"


def test_a_client_hardly_waits_for_rows(tmp_path: Path) -> None:
    with ServerProcess(*OPTIONS, "--batch-storage-dir", str(tmp_path)) as server:
        client = OpenAI(base_url=f"{server.url}/v1", api_key="x")
        first_token(client, 0)
        alone = median(first_token(client, i) for i in range(1, 9))
        batch = wait(client, begin(client, rows(200, tokens=64)), num_done=1)
        beside = []
        for index in range(100, 112):
            beside.append(first_token(client, index))
            time.sleep(0.1)
        batch = client.batches.retrieve(batch.id)
        assert batch.status == "in_progress" and batch.request_counts.completed < 200
        assert median(beside) < alone + 0.1
        client.batches.cancel(batch.id)
