"""Without a key nothing but the open routes answers, whatever the path looks like."""

from __future__ import annotations

import pytest
from starlette.routing import Route

from tests.server.fake_client import FakeEngineClient
from tests.server.harness import HI, app_of, error_of, http

OPEN = {"/health", "/ping", "/version", "/metrics", "/", "/web/{name:path}"}
DOCS = {"/openapi.json", "/docs", "/redoc"}
KEYS = ["first", "sécond"]


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


async def test_every_route_but_the_open_ones_asks_for_a_key() -> None:
    app = app_of(api_key=KEYS)
    routes = {route.path: route for route in app.routes if isinstance(route, Route)}
    assert routes.keys() > OPEN | DOCS
    async with http(app=app) as session:
        for path, route in routes.items():
            for method in route.methods or ():
                filled = path.replace("{model:path}", "tiny").replace("{name:path}", "app.js")
                response = await session.request(method, filled)
                if path in OPEN:
                    assert response.status_code == 200, path
                else:
                    assert response.status_code == 401, path
                    assert response.headers["www-authenticate"] == "Bearer"
                    assert error_of(response)["type"] == "AuthenticationError"


@pytest.mark.parametrize("path", sorted(DOCS))
async def test_the_documents_open_with_a_key_and_under_the_root_path(path: str) -> None:
    async with http(api_key=KEYS, root_path="/api") as session:
        assert (await session.get(path)).status_code == 401
        assert (await session.get("/api" + path)).status_code == 401
        page = await session.get("/api" + path, headers=bearer("first"))
    assert page.status_code == 200
    assert path == "/openapi.json" or "/api/openapi.json" in page.text


@pytest.mark.parametrize("path", ["/nope", "/v1/nope", "//v1/models", "/v1//models", "/health/x"])
async def test_paths_that_do_not_exist_stay_hidden_without_a_key(path: str) -> None:
    async with http(api_key=KEYS) as session:
        assert (await session.get(path)).status_code == 401
        assert (await session.get(path, headers=bearer("first"))).status_code == 404


@pytest.mark.parametrize("path", ["/health", "/version"])
async def test_wrong_method_on_an_open_route_is_hidden_without_a_key(path: str) -> None:
    async with http(api_key=KEYS) as session:
        assert (await session.delete(path)).status_code == 401
        assert (await session.delete(path, headers=bearer("first"))).status_code == 405


@pytest.mark.parametrize("key", KEYS)
async def test_any_of_the_keys_opens(key: str) -> None:
    async with http(api_key=KEYS) as session:
        raw = {b"Authorization": b"bearer " + key.encode()}
        assert (await session.get("/v1/models", headers=raw)).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": ""},
        {"Authorization": "Bearer"},
        {"Authorization": "Bearer "},
        {"Authorization": "Bearer firs"},
        {"Authorization": "Bearer first2"},
        {"Authorization": "Basic first"},
        {"Authorization": "first"},
        {"x-api-key": "firs"},
        {"x-api-key": "Bearer first"},
    ],
)
async def test_anything_else_does_not(headers: dict[str, str]) -> None:
    async with http(api_key=KEYS) as session:
        body = {"messages": HI}
        response = await session.post("/v1/chat/completions", json=body, headers=headers)
    assert response.status_code == 401


async def test_anthropic_clients_send_the_key_in_a_header_of_their_own() -> None:
    async with http(api_key=KEYS) as session:
        headers = {b"x-api-key": "sécond".encode()}
        assert (await session.get("/v1/models", headers=headers)).status_code == 200


async def test_without_keys_everything_is_open() -> None:
    async with http() as session:
        assert (await session.get("/v1/models")).status_code == 200


@pytest.mark.parametrize("path", ["/v1/models", "/api/v1/models"])
async def test_a_root_path_is_guarded_with_and_without_its_prefix(path: str) -> None:
    async with http(api_key=KEYS, root_path="/api") as session:
        assert (await session.get(path)).status_code == 401
        assert (await session.get(path, headers=bearer("first"))).status_code == 200


async def tenants(headers: dict[str, str], body: dict[str, object], keys: list[str]) -> str:
    """The tenants of one request."""
    client = FakeEngineClient()
    async with http(client, headers=headers, api_key=keys) as session:
        answer = await session.post("/v1/completions", json={"prompt": "a", **body})
    assert answer.status_code == 200
    return client.origins[0].tenant


async def test_a_tenant_is_a_key_or_without_keys_a_user() -> None:
    one = await tenants({"authorization": "Bearer k1"}, {}, ["k1", "k2"])
    two = await tenants({"authorization": "Bearer k2"}, {}, ["k1", "k2"])
    assert one and two and one != two
    # What a client says of itself moves nothing to another's account.
    assert one == await tenants({"authorization": "Bearer k1"}, {"user": "me"}, ["k1", "k2"])
    assert "k1" not in one
    assert await tenants({}, {}, []) == ""
    me, you = await tenants({}, {"user": "me"}, []), await tenants({}, {"user": "you"}, [])
    assert me and you and me != you and me != "me"


async def test_trace_headers_travel_with_a_request() -> None:
    client = FakeEngineClient()
    trace = {"traceparent": "00-" + "a" * 32 + "-" + "b" * 16 + "-01", "tracestate": "x" * 5000}
    async with http(client, headers=trace) as session:
        await session.post("/v1/completions", json={"prompt": "a"})
    assert client.origins[0].trace_headers == {"traceparent": trace["traceparent"]}
