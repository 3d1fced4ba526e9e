"""Paths: what a browser gets, what this build lacks, and what nobody has."""

from __future__ import annotations

import re

import pytest

from tests.server.harness import error_of, http

# Every route of vLLM that is not served here, and a word of the reason.
ABSENT = {
    "/generative_scoring": "scores of given tokens",
    "/v1/audio/transcriptions": "audio",
    "/v1/audio/translations": "audio",
    "/v1/realtime": "audio",
    "/v1/uploads": "/v1/files",
    "/v1/images/generations": "images",
    "/v1/load_lora_adapter": "--enable-lora",
    "/v1/unload_lora_adapter": "--enable-lora",
    "/adapters": "adapters",
    "/adapters/mine": "adapters",
    "/v1/systemone": "structured decisions",
    "/scale_elastic_ep": "--enable-elastic-ep",
    "/is_scaling_elastic_ep": "--enable-elastic-ep",
    "/v1/chat/completions/render": "--enable-scale-out",
    "/v1/completions/render": "--enable-scale-out",
    "/v1/responses/render": "--enable-scale-out",
    "/v1/messages/render": "--enable-scale-out",
    "/v1/chat/completions/derender": "--enable-scale-out",
    "/v1/completions/derender": "--enable-scale-out",
    "/inference/v1/generate": "--enable-scale-out",
    "/inference/v1/abort_requests": "--enable-scale-out",
    "/cohere/v2/chat": "/v1/chat/completions",
    "/start_profile": "profiler",
    "/stop_profile": "profiler",
    "/fault_tolerance/apply": "--enable-fault-tolerance",
    "/fault_tolerance/status": "--enable-fault-tolerance",
    "/kv_event_sources": "--kv-events-config",
}
ABSENT_IN_DEV_MODE = {
    "/reset_mm_cache": "media",
    "/reset_encoder_cache": "media",
    "/collective_rpc": "workers",
    "/init_weight_transfer_engine": "weights",
    "/update_weights": "weights",
    "/get_world_size": "weights",
}


@pytest.mark.parametrize(
    ("routes", "is_dev_mode"), [(ABSENT, "0"), (ABSENT_IN_DEV_MODE, "1")], ids=["all", "dev mode"]
)
async def test_absent_routes_name_the_missing_feature(
    routes: dict[str, str], is_dev_mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_SERVER_DEV_MODE", is_dev_mode)
    async with http(root_path="/api", api_key=["k"]) as session:
        for path in routes:
            assert (await session.post(path)).status_code == 401, path
        session.headers["authorization"] = "Bearer k"
        described = (await session.get("/openapi.json")).json()["paths"]
        for path, word in routes.items():
            for prefix in ("", "/api"):
                answer = await session.post(prefix + path, json={"input": "a"})
                error = answer.json()["error"]
                assert (answer.status_code, error["type"]) == (501, "NotImplementedError"), path
                assert path in error["message"] and word in error["message"]
            assert path not in described


@pytest.mark.parametrize(
    "path",
    ["/v1", "/v1/embedding", "/v1/embeddings/x", "/v2/files", "/adapters/a/b", "/sleep"],
)
async def test_an_unknown_path_is_a_404(path: str) -> None:
    async with http() as session:
        answer = await session.post(path, json={})
        assert (answer.status_code, error_of(answer)["type"]) == (404, "NotFoundError")


async def test_a_wrong_method_names_all_that_a_path_takes() -> None:
    async with http(root_path="/api") as session:
        for path, operations in (await session.get("/openapi.json")).json()["paths"].items():
            answer = await session.request("PATCH", "/api" + re.sub(r"{\w+}", "x", path))
            assert answer.status_code == 405 and error_of(answer)
            assert answer.headers["allow"].split(", ") == sorted(m.upper() for m in operations)


@pytest.mark.parametrize("root", ["", "/api"])
@pytest.mark.parametrize("page", ["/docs", "/redoc"])
async def test_pages_take_nothing_from_elsewhere(page: str, root: str) -> None:
    async with http(root_path=root) as session:
        answer = await session.get(root + page)
        assert answer.status_code == 200 and "://" not in answer.text
        # Nothing inline, and nothing that a script could load from elsewhere.
        assert re.findall("<script[^>]*>(?!</script>)", answer.text) == []
        assert "default-src 'self'" in answer.headers["content-security-policy"]
        found = re.findall('(?:src|href|spec-url)="([^"]*)"', answer.text)
        kinds = {}
        for path in found:
            assert path.startswith(root + "/")
            asset = await session.get(path)
            assert asset.status_code == 200 and asset.content
            kinds[path.rpartition(".")[2]] = asset.headers["content-type"].partition(";")[0]
        assert {"js": "text/javascript", "png": "image/png"}.items() <= kinds.items()
        missing = await session.get(root + "/docs/none.js")
        assert missing.status_code == 404 and error_of(missing)
