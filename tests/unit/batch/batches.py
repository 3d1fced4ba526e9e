"""Batch files, and a run over a scripted engine."""

from __future__ import annotations

import asyncio
import json
import socket
from pathlib import Path
from typing import Any

from tests.server.fake_client import FakeEngineClient
from vllm_lite.batch import lines
from vllm_lite.batch.answering import answer_lines
from vllm_lite.batch.journal import Journal
from vllm_lite.batch.launch import process
from vllm_lite.config.batch import BatchConfig
from vllm_lite.config.server import ServerConfig

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


def chat(custom_id: str, **body: Any) -> dict[str, Any]:
    body.setdefault("messages", [{"role": "user", "content": "hi"}])
    return {"custom_id": custom_id, "method": "POST", "url": CHAT, "body": body}


def completion(custom_id: str, **body: Any) -> dict[str, Any]:
    body.setdefault("prompt", "hi")
    return {"custom_id": custom_id, "method": "POST", "url": COMPLETIONS, "body": body}


def write(path: Path, *requests: dict[str, Any] | str) -> Path:
    """A batch file; text stands for itself."""
    texts = [one if isinstance(one, str) else json.dumps(one) for one in requests]
    path.write_text("\n".join(texts) + "\n")
    return path


def run(
    source: Path | str,
    output: Path | str,
    client: FakeEngineClient | None = None,
    server: ServerConfig | None = None,
    model: str = "tiny",
    **options: Any,
) -> FakeEngineClient:
    """Answer a batch with the scripted engine, which is returned."""
    batch = BatchConfig(input_file=str(source), output_file=str(output), **options)
    engine = client or FakeEngineClient()

    def answer(path: Path, whole: lines.Scan, journal: Journal) -> None:
        asyncio.run(answer_lines(engine, server or ServerConfig(), batch, path, whole, journal))

    process(batch, model, answer)
    return engine


def records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def steady(path: Path) -> list[dict[str, Any]]:
    """The records without what differs from run to run."""
    found = records(path)
    for record in found:
        record.pop("id")
        record["response"].pop("request_id")
        body = record["response"]["body"] or {}
        body.pop("id", None)
        body.pop("created", None)
    return found


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def many(path: Path, number: int) -> Path:
    """`number` lines of 4 KB; every hundredth is broken."""
    padding = "x" * 4000
    return write(
        path,
        *(
            f'{{"custom_id": "{i}", "url": '
            if i % 100 == 99
            else completion(str(i), prompt=f"{i}", max_tokens=1 + i % 5, user=padding)
            for i in range(number)
        ),
    )
