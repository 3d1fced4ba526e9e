"""Developers' routes exist only where they are asked for, and ask for a key like all others."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from tests.server.fake_client import FakeEngineClient
from tests.server.harness import HI, app_of, error_of, http

ROUTES = [
    ("POST", "/pause"),
    ("POST", "/resume"),
    ("GET", "/is_paused"),
    ("POST", "/sleep"),
    ("POST", "/wake_up"),
    ("GET", "/is_sleeping"),
    ("POST", "/abort_requests"),
    ("POST", "/reset_prefix_cache"),
    ("GET", "/server_info"),
]


@pytest.fixture
def dev_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_SERVER_DEV_MODE", "1")


@pytest.mark.parametrize(("method", "path"), ROUTES)
async def test_without_the_mode_they_are_not_there(method: str, path: str) -> None:
    async with http() as session:
        assert (await session.request(method, path)).status_code == 404


@pytest.mark.parametrize(("method", "path"), ROUTES)
@pytest.mark.usefixtures("dev_mode")
async def test_with_the_mode_they_ask_for_a_key(method: str, path: str) -> None:
    async with http(api_key=["k"]) as session:
        assert (await session.request(method, path)).status_code == 401


@pytest.mark.usefixtures("dev_mode")
async def test_pause_passes_its_mode_to_the_engine() -> None:
    client = FakeEngineClient()
    async with http(client) as session:
        paused = await session.post("/pause?mode=wait&clear_cache=false")
        assert (paused.json(), client.pause) == ({"status": "paused"}, ("wait", False))
        assert (await session.get("/is_paused")).json() == {"is_paused": True}
        assert (await session.post("/resume")).json() == {"status": "resumed"}
        assert (await session.get("/is_paused")).json() == {"is_paused": False}
        bad = await session.post("/pause?mode=stop")
        assert (bad.status_code, error_of(bad)["param"]) == (400, "mode")
        bad = await session.post("/pause?clear_cache=perhaps")
        assert (bad.status_code, error_of(bad)["param"]) == (400, "clear_cache")


@pytest.mark.usefixtures("dev_mode")
async def test_an_engine_sleeps_where_it_may() -> None:
    client = FakeEngineClient()
    async with http(client) as session:
        bad = await session.post("/sleep")
        assert bad.status_code == 400 and "--enable-sleep-mode" in error_of(bad)["message"]
        model = replace(client.config.model, enable_sleep_mode=True)
        client.config = replace(client.config, model=model)
        for query in ("level=3", "level=one", "mode=keep", "mode=stop"):
            bad = await session.post(f"/sleep?{query}")
            assert (bad.status_code, error_of(bad)["param"]) == (400, query.partition("=")[0])
        assert (await session.post("/sleep?level=1&mode=wait")).status_code == 200
        assert client.pause == ("wait", True)
        assert (await session.get("/is_sleeping")).json() == {"is_sleeping": True}
        assert (await session.post("/wake_up?tags=weights")).status_code == 200
        assert (await session.get("/is_sleeping")).json() == {"is_sleeping": True}
        assert (await session.post("/wake_up?tags=weights&tags=kv_cache")).status_code == 200
        assert (await session.get("/is_sleeping")).json() == {"is_sleeping": False}
        bad = await session.post("/wake_up?tags=all")
        assert (bad.status_code, error_of(bad)["param"]) == (400, "tags")


@pytest.mark.usefixtures("dev_mode")
async def test_requests_are_aborted_by_id_or_all() -> None:
    client = FakeEngineClient("Hello, world")
    client.gate = asyncio.Event()
    app = app_of(client)

    async def ask(session_id: str) -> str:
        async with http(app=app, headers={"X-Request-Id": session_id}) as session:
            reply = await session.post("/v1/chat/completions", json={"messages": HI})
            reason: str = reply.json()["choices"][0]["finish_reason"]
            return reason

    asked = [asyncio.create_task(ask(name)) for name in ("a", "b", "c")]
    while len(client.running) < 3:
        await asyncio.sleep(0)
    async with http(app=app) as session:
        none = await session.post("/abort_requests", json={"request_ids": ["chatcmpl-x"]})
        assert none.json() == {"status": "aborted", "aborted": 0}
        bad = await session.post("/abort_requests", json={"request_ids": "chatcmpl-a"})
        assert (bad.status_code, error_of(bad)["param"]) == (400, "request_ids")
        rest = await session.post("/abort_requests", json={})
        assert rest.json() == {"status": "aborted", "aborted": 3}
    assert await asyncio.gather(*asked) == ["abort"] * 3


@pytest.mark.usefixtures("dev_mode")
async def test_the_prefix_cache_is_reset() -> None:
    async with http() as session:
        assert (await session.post("/reset_prefix_cache")).json() == {"success": True}


@pytest.mark.parametrize("shape", ["text", "json"])
@pytest.mark.usefixtures("dev_mode")
async def test_server_info_shows_no_secret(shape: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "s3cret-key")
    monkeypatch.setenv("HF_TOKEN", "s3cret-token")
    client = FakeEngineClient(hf_token="s3cret-login")
    async with http(client, api_key=["s3cret-key"]) as session:
        headers = {"Authorization": "Bearer s3cret-key"}
        info = await session.get(f"/server_info?config_format={shape}", headers=headers)
        bad = await session.get("/server_info?config_format=xml", headers=headers)
    assert bad.status_code == 400
    assert "s3cret" not in info.text
    payload = info.json()
    assert set(payload) == {"vllm_config", "vllm_env", "system_env"}
    config = payload["vllm_config"]
    assert "max_model_len=128" in config if shape == "text" else config["model"]["max_model_len"]
    assert payload["vllm_env"]["VLLM_SERVER_DEV_MODE"] is True
