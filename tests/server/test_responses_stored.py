"""/v1/responses: responses that are stored, read again, cancelled or in the background."""

from __future__ import annotations

import asyncio
import json

import pytest

from tests.server.fake_client import FakeEngineClient
from tests.server.harness import HI, Connection, app_of, error_of, http
from tests.server.responses import CALL, PARSERS, PATH, TOOL, events_of, finished, said, thinker
from tests.server.test_disconnect import until_running


async def test_a_stored_response_is_read_continued_and_deleted() -> None:
    client = FakeEngineClient("One", max_model_len=512)
    async with http(client) as session:
        first = (await session.post(PATH, json={"input": "a", "instructions": "I"})).json()
        assert (await session.get(f"{PATH}/{first['id']}")).json() == first
        body = {"input": "b", "previous_response_id": first["id"], "stream": True}
        second = events_of((await session.post(PATH, json=body)).text)[-1]["response"]
        assert said(client) == "<user>a\n<assistant>One\n<user>b\n<assistant>"
        third = {"input": "c", "previous_response_id": second["id"]}
        assert (await session.post(PATH, json=third)).status_code == 200
        assert said(client).startswith("<user>a\n<assistant>One\n<user>b\n<assistant>One\n<user>c")
        replay = await session.get(f"{PATH}/{first['id']}?stream=true")
        assert (replay.status_code, error_of(replay)["param"]) == (400, "stream")
        assert (await session.post(f"{PATH}/{first['id']}/cancel")).status_code == 400
        gone = await session.delete(f"{PATH}/{first['id']}")
        assert gone.json() == {"id": first["id"], "object": "response", "deleted": True}
        for method in ("GET", "DELETE"):
            missing = await session.request(method, f"{PATH}/{first['id']}")
            assert (missing.status_code, error_of(missing)["type"]) == (404, "NotFoundError")


async def test_response_with_store_false_is_not_stored() -> None:
    async with http() as session:
        reply = (await session.post(PATH, json={"input": "a", "store": False})).json()
        assert reply["store"] is False
        assert (await session.get(f"{PATH}/{reply['id']}")).status_code == 404


async def test_a_response_belongs_to_the_key_that_made_it() -> None:
    async with http(api_key=["one", "two"]) as session:
        mine, other = ({"Authorization": f"Bearer {key}"} for key in ("one", "two"))
        reply = (await session.post(PATH, json={"input": "a", "user": "u"}, headers=mine)).json()
        path = f"{PATH}/{reply['id']}"
        assert (await session.get(path, headers=mine)).status_code == 200
        assert (await session.get(path, headers=other)).status_code == 404
        assert (await session.delete(path, headers=other)).status_code == 404
        chained = {"input": "b", "previous_response_id": reply["id"]}
        refused = await session.post(PATH, json=chained, headers=other)
        assert (refused.status_code, error_of(refused)["param"]) == (404, "previous_response_id")


async def test_an_id_cannot_be_taken_twice() -> None:
    async with http(headers={"X-Request-Id": "same"}) as session:
        assert (await session.post(PATH, json={"input": "a", "user": "u"})).status_code == 200
        again = await session.post(PATH, json={"input": "b", "user": "v"})
        assert (again.status_code, error_of(again)["param"]) == (400, "request_id")


@pytest.mark.parametrize(("enabled", "num_processes"), [("0", 1), ("1", 2)])
async def test_without_a_store_nothing_needs_one(
    enabled: str, num_processes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_ENABLE_RESPONSES_API_STORE", enabled)
    async with http(api_server_count=num_processes) as session:
        reply = (await session.post(PATH, json={"input": "a", "store": True})).json()
        assert reply["store"] is False
        assert (await session.get(f"{PATH}/{reply['id']}")).status_code == 404
        later = {"input": "b", "previous_response_id": reply["id"]}
        assert (await session.post(PATH, json=later)).status_code == 404
        refused = await session.post(PATH, json={"input": "a", "background": True})
        assert (refused.status_code, error_of(refused)["param"]) == (400, "background")


async def test_a_background_response_is_queued_and_can_be_waited_for() -> None:
    async with http() as session:
        reply = (await session.post(PATH, json={"input": "a", "background": True})).json()
        assert (reply["status"], reply["output"]) == ("queued", [])
        done = await finished(session, f"{PATH}/{reply['id']}")
        assert (done["status"], done["background"]) == ("completed", True)
        assert done["output"][0]["content"][0]["text"] == "Hello"
        assert (await session.post(f"{PATH}/{reply['id']}/cancel")).json() == done


@pytest.mark.parametrize("how", ["cancel", "delete"])
async def test_cancelled_response_keeps_its_text_and_frees_the_request(how: str) -> None:
    client = FakeEngineClient("Hello")
    client.gate = asyncio.Event()
    app = app_of(client)
    async with http(app=app) as session:
        reply = (await session.post(PATH, json={"input": "a", "background": True})).json()
        path = f"{PATH}/{reply['id']}"
        await until_running(client, 1)
        client.gate.set()
        while (await session.get(path)).json()["status"] == "queued":
            await asyncio.sleep(0)
        client.gate.clear()
        early = {"input": "b", "previous_response_id": reply["id"]}
        assert (await session.post(PATH, json=early)).status_code == 400
        if how == "cancel":
            ended = (await session.post(f"{path}/cancel")).json()
            assert (ended["status"], ended["output"][0]["status"]) == ("cancelled", "incomplete")
            assert (await session.get(path)).json() == ended
        else:
            assert (await session.delete(path)).json()["deleted"]
            assert (await session.get(path)).status_code == 404
    assert client.running == set() and len(client.aborted) == 1
    assert len(app.state.context.generations) == 0


async def test_a_background_stream_outlives_its_reader_and_is_replayed() -> None:
    client = FakeEngineClient("Hello")
    client.gate = asyncio.Event()
    client.gate.set()
    app = app_of(client)
    body = {"input": "a", "background": True, "stream": True}
    connection = Connection(app, PATH, body)
    await connection.wait_bytes()
    await connection.leave()
    first = b"".join(m.get("body", b"") for m in connection.sent).decode()
    response_id = json.loads(first.split("data: ")[1].split("\n")[0])["response"]["id"]
    path = f"{PATH}/{response_id}"
    async with http(app=app) as session:
        done = await finished(session, path)
        assert client.aborted == [] and done["status"] == "completed"
        replay = (await session.get(f"{path}?stream=true")).text
        events = events_of(replay)
        kinds = [event["type"].removeprefix("response.") for event in events[:3]]
        assert kinds == ["created", "queued", "in_progress"]
        assert events[-1]["response"] == done
        assert replay.startswith(first)
        rest = (await session.get(f"{path}?stream=true&starting_after=4")).text
        assert replay.endswith(rest) and '"sequence_number":5}' in rest.split("\n\n")[0]
        for after in ("x", "-2", "²"):
            bad = await session.get(f"{path}?stream=true&starting_after={after}")
            assert (bad.status_code, error_of(bad)["param"]) == (400, "starting_after")


async def test_replay_follows_a_running_response_until_its_cancel() -> None:
    client = FakeEngineClient("Hello")
    client.gate = asyncio.Event()
    app = app_of(client)
    async with http(app=app, headers={"X-Request-Id": "r"}) as session:
        body = {"input": "a", "background": True, "stream": True}
        readers = [asyncio.create_task(session.post(PATH, json=body))]
        await until_running(client, 1)
        readers.append(asyncio.create_task(session.get(f"{PATH}/resp_r?stream=1")))
        await asyncio.sleep(0)
        assert (await session.post(f"{PATH}/resp_r/cancel")).json()["status"] == "cancelled"
        texts = [(await reader).text for reader in readers]
    assert texts[0] == texts[1]
    last = events_of(texts[0])[-1]
    assert (last["type"], last["response"]["status"]) == ("response.incomplete", "cancelled")
    assert len(client.aborted) == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_takes_its_response_along(stream: bool) -> None:
    client = FakeEngineClient()
    client.gate = asyncio.Event()
    app = app_of(client)
    connection = Connection(app, PATH, {"input": "a", "stream": stream, "request_id": "gone"})
    await until_running(client, 1)
    async with http(app=app) as session:
        running = await session.get(f"{PATH}/resp_gone")
        assert running.json()["status"] == "in_progress"
        await connection.leave()
        assert (await session.get(f"{PATH}/resp_gone")).status_code == 404
    assert client.running == set()
    assert len(app.state.context.generations) == 0


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("path", "kind"), [(PATH, "responses"), ("/v1/messages", "chat")])
async def test_calls_are_counted_and_texts_logged_as_in_chat(
    path: str, kind: str, stream: bool, caplog: pytest.LogCaptureFixture
) -> None:
    options = {**PARSERS, "enable_log_requests": True, "enable_log_outputs": True}
    function = {"name": TOOL["name"], "input_schema": TOOL["parameters"]}
    body = (
        {"input": "hi", "tools": [TOOL]}
        if path == PATH
        else {"model": "tiny", "max_tokens": 500, "messages": HI, "tools": [function]}
    )
    client = thinker()
    async with http(client, **options) as session:
        headers = {"X-Vllm-Priority": "5"}
        with caplog.at_level("INFO"):
            await session.post(path, json={**body, "stream": stream}, headers=headers)
        metrics = (await session.get("/metrics")).text
    assert client.options[0]["priority"] == 5
    (line,) = [r.getMessage() for r in caplog.records if "Generated for" in r.getMessage()]
    assert CALL.splitlines()[1] in line
    mode = "streaming" if stream else "non_streaming"
    (count,) = [
        line.rsplit(" ", 1)[1]
        for line in metrics.splitlines()
        if line.startswith("vllm:tool_call_parser_invocations_total")
        and f'mode="{mode}"' in line
        and f'request_type="{kind}' in line
        and 'outcome="tool_call"' in line
    ]
    assert float(count) == 1
