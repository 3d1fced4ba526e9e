"""Chats of a model whose tokenizer writes them itself, by mistral-common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from tests.server.fake_client import FakeEngineClient
from tests.server.harness import app_of, http
from tests.unit.tokenizer.tekken import write_tekken
from vllm_lite.errors import UsageError
from vllm_lite.tokenizer.mistral import tokenizer_from_mistral
from vllm_lite.tokenizer.parts import ChatEncoder
from vllm_lite.tokenizer.tokenizer import Tokenizer

pytest.importorskip("mistral_common.tokens.tokenizers.mistral")
CHAT = "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "Grüße?"}]
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("mistral")
    write_tekken(folder / "tekken.json", "v3")
    return Tokenizer(tokenizer_from_mistral(folder))


class Folded:
    """`chat` with ids that the fake engine's model has."""

    def __init__(self, chat: ChatEncoder) -> None:
        self._chat = chat

    def encode(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> list[int]:
        return [token_id % 256 for token_id in self._chat.encode(messages, **options)]


@pytest.fixture
def client(tokenizer: Tokenizer) -> FakeEngineClient:
    client = FakeEngineClient()
    assert tokenizer.chat is not None
    client.tokenizer.chat = Folded(tokenizer.chat)
    client.tokenizer.chat_templates.clear()
    return client


async def test_prompts_are_the_tokenizers_own(client: FakeEngineClient) -> None:
    assert client.tokenizer.chat is not None
    options = {"enable_auto_tool_choice": True, "tool_call_parser": "mistral"}
    for tools in (None, TOOLS):
        expected = client.tokenizer.chat.encode(MESSAGES, tools=tools)
        body: dict[str, Any] = {"messages": MESSAGES, "tools": tools}
        async with http(client, **options) as session:
            reply = await session.post(CHAT, json={**body, "reasoning_effort": "low"})
            counted = await session.post("/tokenize", json=body)
        assert reply.status_code == 200, reply.text
        assert counted.json()["tokens"] == expected
        assert client.seen[-1][0]["prompt_token_ids"] == expected
    async with http(client) as session:
        body = {"model": client.config.model.model, "max_tokens": 4, "messages": MESSAGES}
        reply = await session.post("/v1/messages", json=body)
    assert reply.status_code == 200, reply.text
    assert client.seen[-1][0]["prompt_token_ids"] == client.tokenizer.chat.encode(MESSAGES)


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"messages": [{"role": "assistant", "content": "a"}]}, "messages"),
        ({"chat_template_kwargs": {"a": 1}}, "chat_template_kwargs"),
        ({"documents": [{"text": "a"}]}, "documents"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}]},
            "messages",
        ),
    ],
)
async def test_what_it_refuses_is_the_clients_fault(
    client: FakeEngineClient, changes: dict[str, Any], param: str
) -> None:
    async with http(client) as session:
        reply = await session.post(CHAT, json={"messages": MESSAGES, **changes})
    assert reply.status_code == 400 and reply.json()["error"]["param"].startswith(param), reply.text


def test_a_server_has_no_template_beside_it(client: FakeEngineClient) -> None:
    with pytest.raises(UsageError, match="--chat-template has no effect"):
        app_of(client, chat_template="{{ messages }}")
