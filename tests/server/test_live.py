"""The stream of what the engine does: who sees what, and that nobody pays for it unseen."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from tests.server.fake_client import FakeEngineClient
from tests.server.harness import http
from tests.server.running import running
from vllm_lite.server import health
from vllm_lite.server.generation import tenant_of


async def first_events(server: Any, count: int, key: str = "") -> list[dict[str, Any]]:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    found: list[dict[str, Any]] = []
    async with server.http.stream("GET", "/web/live", headers=headers) as reply:
        assert reply.status_code == 200
        assert reply.headers["content-type"].startswith("text/event-stream")
        async for line in reply.aiter_lines():
            if line.startswith("data: "):
                found.append(json.loads(line.removeprefix("data: ")))
            if len(found) == count:
                break
    return found


async def test_key_sees_its_own_requests_and_the_total_of_others() -> None:
    client = FakeEngineClient()
    client.snapshot_tenants = [tenant_of("one"), tenant_of("two")]
    async with running(client, api_key=["one", "two"]) as server:
        assert (await server.http.get("/web/live")).status_code == 401
        (mine,) = await first_events(server, 1, "one")
        (other,) = await first_events(server, 1, "two")
    assert [one["request_id"] for one in mine["requests"]] == ["chat-0"]
    assert [one["request_id"] for one in other["requests"]] == ["chat-1"]
    assert (mine["blocks"], other["blocks"]) == ([0, 0, -1, -2], [-3, -3, -1, -2])
    assert tenant_of("one") not in json.dumps([mine, other])


async def test_the_engine_is_asked_once_for_all_and_never_unseen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(health, "PERIOD", 3600)
    client = FakeEngineClient()
    async with running(client) as server:
        await server.http.get("/health")
        assert client.num_snapshots == 0
        await asyncio.gather(*(first_events(server, 1) for _ in range(8)))
    assert client.num_snapshots == 1


async def test_the_stream_goes_with_the_page() -> None:
    async with http(disable_web_page=True) as session:
        assert (await session.get("/web/live")).status_code == 404
