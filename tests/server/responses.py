"""Shared by the tests of /v1/responses: clients, and events as data."""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx

from tests.server.fake_client import FakeEngineClient
from tests.server.harness import http
from vllm_lite.config.structured_outputs import StructuredOutputsConfig
from vllm_lite.engine.front.input_processor import InputProcessor

GOLDEN = Path(__file__).parent / "golden"
PATH = "/v1/responses"
TOOL = {
    "type": "function",
    "name": "get_weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome"}}\n</tool_call>'
THINKS = f"<think>Hm.</think>Let me look.{CALL}"
PARSERS: dict[str, Any] = {"enable_auto_tool_choice": True, "tool_call_parser": "hermes"}


def thinker(*replies: str, max_model_len: int = 1024) -> FakeEngineClient:
    """A model that reasons, and a server that knows."""
    client = FakeEngineClient(*(replies or (THINKS,)), max_model_len=max_model_len)
    reasoning = StructuredOutputsConfig(reasoning_parser="qwen3")
    client.config = replace(client.config, structured_outputs=reasoning)
    client._inputs = InputProcessor(client.config, client.tokenizer)  # type: ignore[arg-type]
    return client


def said(client: FakeEngineClient, index: int = -1) -> str:
    """The prompt of a request, as the fake template writes it."""
    prompt = client.seen[index][0]
    assert isinstance(prompt, dict)
    return prompt["prompt"]


def events_of(text: str) -> list[dict[str, Any]]:
    """The events of a stream, their framing and numbers checked."""
    events = []
    for number, block in enumerate(text.removesuffix("\n\n").split("\n\n")):
        kind, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert kind == f"event: {event['type']}"
        assert event["sequence_number"] == number
        events.append(event)
    return events


def settled(text: str) -> str:
    """A stream without what changes from run to run."""
    text = re.sub(r'_at":( ?)\d+', r'_at":\g<1>0', text)
    names: dict[str, str] = {}

    def name(match: re.Match[str]) -> str:
        return names.setdefault(match[0], f"{match[1]}_{len(names)}")

    return re.sub(r"\b(rs|msg|fc|call|resp)_[0-9a-f]{16,32}", name, text)


async def create(client: FakeEngineClient | None = None, **body: Any) -> httpx.Response:
    async with http(client) as session:
        return await session.post(PATH, json={"input": "hi", **body})


# In the background.


async def finished(session: httpx.AsyncClient, path: str) -> dict[str, Any]:
    while True:
        reply: dict[str, Any] = (await session.get(path)).json()
        if reply["status"] not in ("queued", "in_progress"):
            return reply
        await asyncio.sleep(0)
