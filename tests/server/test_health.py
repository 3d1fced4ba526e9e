"""The routes that watch a server, and those that browsers need."""

from __future__ import annotations

import asyncio
import re

import pytest

from tests.server.fake_client import FakeEngineClient
from tests.server.harness import HI, Connection, app_of, error_of, http
from vllm_lite import __version__


@pytest.mark.parametrize("path", ["/health", "/ping"])
async def test_health_follows_the_engine(path: str) -> None:
    client = FakeEngineClient()
    async with http(client) as session:
        assert (await session.get(path)).status_code == 200
        client.errored = True
        response = await session.get(path)
        assert response.status_code == 503
        assert "signal 9" not in error_of(response)["message"]


async def test_a_dead_engine_answers_requests_with_an_error() -> None:
    client = FakeEngineClient()
    client.errored = True
    async with http(client) as session:
        response = await session.post("/v1/chat/completions", json={"messages": HI})
        assert (response.status_code, error_of(response)["type"]) == (500, "InternalServerError")


async def test_metrics_are_prometheus_text() -> None:
    client = FakeEngineClient()
    async with http(client) as session:
        response = await session.get("/metrics")
        assert response.headers["content-type"].startswith("text/plain; version=")
        assert "vllm:num_requests_running 0.0" in response.text
        client.registry = None
        assert "vllm:" not in (await session.get("/metrics")).text


async def test_requests_are_counted_by_the_route_that_took_them() -> None:
    async with http(api_key=["k"], root_path="/api") as session:
        session.headers["authorization"] = "Bearer k"
        for path in ("/v1/models/a", "/api/v1/models/b", "/none/1", "/none/2", "/health"):
            await session.get(path)
        await session.get("/v1/models", headers={"authorization": ""})
        text = (await session.get("/metrics")).text
    counted = {
        line.rpartition(" ")[0].partition("{")[2].rstrip("}"): float(line.rpartition(" ")[2])
        for line in text.splitlines()
        if line.startswith("http_requests_total{")
    }
    assert counted == {
        'handler="/v1/models/{model:path}",method="GET",status="4xx"': 2,
        'handler="none",method="GET",status="4xx"': 2,
        'handler="/v1/models",method="GET",status="4xx"': 1,
    }


async def test_version_is_the_packages() -> None:
    async with http() as session:
        assert (await session.get("/version")).json() == {"version": __version__}


@pytest.mark.parametrize(("tracked", "load"), [(False, 0), (True, 1)])
async def test_load_counts_running_requests_where_tracked(tracked: bool, load: int) -> None:
    client = FakeEngineClient()
    client.gate = asyncio.Event()
    app = app_of(client, enable_server_load_tracking=tracked)
    connection = Connection(app, "/v1/chat/completions", {"messages": HI})
    while not client.running:
        await asyncio.sleep(0)
    async with http(app=app) as session:
        assert (await session.get("/load")).json() == {"server_load": load}
        await connection.leave()
        assert (await session.get("/load")).json() == {"server_load": 0}


async def test_the_openapi_document_describes_every_body() -> None:
    async with http() as session:
        answer = await session.get("/openapi.json")
        document = answer.json()
        schemas = document["components"]["schemas"]
        for path in ("/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize"):
            content = document["paths"][path]["post"]["requestBody"]["content"]
            schema = content["application/json"]["schema"]
            for one in schema.get("anyOf", [schema]):
                assert schemas[one["$ref"].rpartition("/")[2]]["properties"]
        for reference in re.findall(r'"\$ref":"([^"]*)"', answer.text):
            assert reference.startswith("#/components/schemas/")
            assert reference.rpartition("/")[2] in schemas
        (parameter,) = document["paths"]["/v1/models/{model}"]["get"]["parameters"]
        assert (parameter["name"], parameter["in"]) == ("model", "path")
    async with http(disable_fastapi_docs=True) as session:
        assert (await session.get("/openapi.json")).status_code == 404


@pytest.mark.parametrize(("origin", "status"), [("https://good", 200), ("https://evil", 400)])
async def test_preflights_follow_the_allowed_origins(origin: str, status: int) -> None:
    headers = {"Origin": origin, "Access-Control-Request-Method": "POST"}
    async with http(allowed_origins=["https://good"], api_key=["k"]) as session:
        response = await session.options("/v1/chat/completions", headers=headers)
    assert response.status_code == status
    if status != 200:
        error_of(response)
