"""docs/server.md is what the application says of itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.server.make_docs import document, render

PAGE = Path(__file__).parents[2] / "docs" / "server.md"


def test_the_page_is_as_the_application(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_SERVER_DEV_MODE", "1")
    found = render(document())
    advice = "run `python -m tests.server.make_docs > docs/server.md`"
    assert found == PAGE.read_text(), advice


def test_every_field_that_chat_lacks_is_described() -> None:
    schemas = document()["components"]["schemas"]
    for name in ("ChatCompletionRequest", "CompletionRequest", "TokenizeRequest"):
        for field, value in schemas[name]["properties"].items():
            assert value.get("description"), f"{name}.{field}"
    chat = schemas["ChatCompletionRequest"]["properties"].keys()
    for name in ("ResponsesRequest", "MessagesRequest", "CountTokensRequest"):
        for field, value in schemas[name]["properties"].items():
            assert value.get("description") or field in chat, f"{name}.{field}"
