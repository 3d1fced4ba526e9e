"""The content of whole replies, and requests as they reach the engine."""

from __future__ import annotations

import json
from typing import Any

import pytest
from prometheus_client import Gauge

from tests.server.fake_client import FakeEngineClient
from tests.server.harness import HI, chat, complete, error_of, http, post
from vllm_lite.sampling_params import RequestOutputKind

CHAT_KEYS = [
    "id",
    "object",
    "created",
    "model",
    "choices",
    "service_tier",
    "system_fingerprint",
    "usage",
    "prompt_logprobs",
    "prompt_token_ids",
    "prompt_text",
    "kv_transfer_params",
    "ec_transfer_params",
    "metrics",
]
USAGE_KEYS = [
    "prompt_tokens",
    "total_tokens",
    "completion_tokens",
    "prompt_tokens_details",
    "completion_tokens_details",
]


async def test_a_chat_reply_has_all_its_keys_in_order() -> None:
    reply = (await chat()).json()
    assert list(reply) == CHAT_KEYS
    assert reply["id"].startswith("chatcmpl-") and reply["object"] == "chat.completion"
    assert list(reply["usage"]) == USAGE_KEYS
    (choice,) = reply["choices"]
    assert choice["message"]["role"] == "assistant" and choice["message"]["content"] == "Hello"
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", None)
    assert reply["usage"]["completion_tokens"] == 6


async def test_a_completion_reply_numbers_choices_by_prompt_and_then_by_choice() -> None:
    reply = (await complete(FakeEngineClient("x", "y"), prompt=["a", [98, 99]], n=2)).json()
    assert reply["id"].startswith("cmpl-") and reply["object"] == "text_completion"
    assert [(c["index"], c["text"]) for c in reply["choices"]] == [
        (0, "x"),
        (1, "y"),
        (2, "x"),
        (3, "y"),
    ]
    assert reply["usage"]["prompt_tokens"] == 3


async def test_replies_always_name_the_first_served_name() -> None:
    for model in (None, "tiny", "alias"):
        assert (await chat(model=model)).json()["model"] == "tiny"


async def test_a_clients_request_id_becomes_part_of_the_replys() -> None:
    async with http() as session:
        body = {"messages": HI, "request_id": "body"}
        path = "/v1/chat/completions"
        assert (await session.post(path, json=body)).json()["id"] == "chatcmpl-body"
        headers = {"X-Request-Id": "header"}
        reply = await session.post(path, json=body, headers=headers)
        assert reply.json()["id"] == "chatcmpl-header"
        assert "x-request-id" not in reply.headers


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/invocations"])
@pytest.mark.parametrize("stream", [False, True])
async def test_reply_reports_the_load_in_the_requested_format(path: str, stream: bool) -> None:
    client = FakeEngineClient()
    for name, value in (("num_requests_waiting", 3), ("kv_cache_usage_perc", 0.5)):
        Gauge(f"vllm:{name}", "One.", ["engine"], registry=client.registry).labels("0").set(value)
    known = "messages" if "chat" in path else "prompt"
    body = {known: HI if known == "messages" else "a", "stream": stream}

    async def told(form: str) -> str | None:
        headers = {"endpoint-load-metrics-format": form}
        async with http(client, headers=headers) as session:
            found: str | None = (await session.post(path, json=body)).headers.get(
                "endpoint-load-metrics"
            )
            return found

    assert await told("TEXT") == (
        "TEXT named_metrics.num_requests_waiting=3.0, named_metrics.kv_cache_usage_perc=0.5"
    )
    report = await told("json")
    assert report is not None and report.startswith("JSON ")
    assert json.loads(report[5:]) == {
        "named_metrics": {"num_requests_waiting": 3.0, "kv_cache_usage_perc": 0.5}
    }
    assert await told("xml") is None
    client.registry = None  # --disable-log-stats
    assert await told("TEXT") is None


async def test_request_id_headers_come_with_every_response_where_enabled() -> None:
    async with http(enable_request_id_headers=True, api_key=["k"]) as session:
        assert len((await session.get("/health")).headers["x-request-id"]) == 32
        headers = {"X-Request-Id": "mine"}
        refused = await session.get("/v1/models", headers=headers)
        assert (refused.status_code, refused.headers["x-request-id"]) == (401, "mine")


async def test_sampling_fields_reach_the_engine() -> None:
    fields: dict[str, Any] = {
        "n": 2,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 5,
        "min_p": 0.1,
        "presence_penalty": 1,
        "frequency_penalty": -1,
        "repetition_penalty": 1.5,
        "seed": 7,
        "stop_token_ids": [1],
        "allowed_token_ids": [2, 3],
        "bad_words": ["no"],
        "min_tokens": 2,
        "max_tokens": 9,
        "ignore_eos": True,
        "include_stop_str_in_output": True,
        "skip_special_tokens": False,
        "spaces_between_special_tokens": False,
        "truncate_prompt_tokens": 4,
    }
    for send in (chat, complete):
        client = FakeEngineClient()
        body = {**fields, "stop": "x", "logit_bias": {"5": 200}, "priority": 3, "cache_salt": "s"}
        assert (await send(client, **body)).status_code == 200
        params = client.seen[0][1]
        assert {name: getattr(params, name) for name in fields} == fields
        assert params.stop == ["x"] and params.logit_bias == {5: 100}
        assert params.output_kind is RequestOutputKind.FINAL_ONLY
        assert client.options[0] == {"priority": 3, "cache_salt": "s"}


async def test_the_generation_config_gives_defaults_that_clients_override() -> None:
    defaults = {"temperature": 0.6, "top_k": 20}
    client = FakeEngineClient(defaults=defaults)
    await chat(client)
    await chat(client, temperature=0.1)
    (_, first, _), (_, second, _) = client.seen
    assert (first.temperature, first.top_k) == (0.6, 20)
    assert (second.temperature, second.top_k) == (0.1, 20)


@pytest.mark.parametrize(
    ("configured", "cap", "asked", "chat_limit", "completion_limit"),
    [
        (None, None, None, None, 16),
        (None, None, 20, 20, 20),
        (7, None, None, 7, 16),
        (7, None, 20, 20, 20),
        (20, None, None, 20, 16),
        (7, 7, None, 7, 7),
        (7, 7, 20, 7, 7),
        (7, 7, 5, 5, 5),
    ],
)
async def test_max_tokens_comes_from_the_client_the_config_or_the_api(
    configured: int | None,
    cap: int | None,
    asked: int | None,
    chat_limit: int | None,
    completion_limit: int,
) -> None:
    defaults = {} if configured is None else {"max_tokens": configured}
    given = {} if cap is None else {"override_generation_config": {"max_new_tokens": cap}}
    client = FakeEngineClient(defaults=defaults, **given)
    await chat(client, max_tokens=asked)
    await complete(client, max_tokens=asked)
    assert [params.max_tokens for _, params, _ in client.seen] == [chat_limit, completion_limit]


async def test_max_completion_tokens_goes_before_max_tokens() -> None:
    client = FakeEngineClient()
    await chat(client, max_tokens=3, max_completion_tokens=5)
    assert client.seen[0][1].max_tokens == 5


async def test_chat_logprobs_show_the_sampled_token_and_the_likeliest() -> None:
    reply = (await chat(logprobs=True, top_logprobs=2, max_tokens=1)).json()
    (entry,) = reply["choices"][0]["logprobs"]["content"]
    assert (entry["token"], entry["logprob"], entry["bytes"]) == ("H", -0.25, [72])
    assert [top["token"] for top in entry["top_logprobs"]] == ["H", "I"]


@pytest.mark.parametrize("by_server", [False, True])
async def test_tokens_can_be_shown_as_ids(by_server: bool) -> None:
    body = {"prompt": "a", "logprobs": 1, "max_tokens": 1}
    body |= {} if by_server else {"return_tokens_as_token_ids": True}
    reply = await post("/v1/completions", body, return_tokens_as_token_ids=by_server)
    logprobs = reply.json()["choices"][0]["logprobs"]
    assert logprobs["tokens"] == ["token_id:72"]
    assert logprobs["top_logprobs"] == [{"token_id:72": -0.25}]


async def test_token_ids_come_where_asked_for() -> None:
    reply = (await complete(return_token_ids=True, max_tokens=2)).json()
    assert reply["choices"][0]["prompt_token_ids"] == [104, 105]
    assert reply["choices"][0]["token_ids"] == [72, 101]
    reply = (await chat(return_token_ids=True, max_tokens=2)).json()
    assert bytes(reply["prompt_token_ids"]).decode() == "<user>hi\n<assistant>"


async def test_an_echo_can_score_a_prompt_without_generating() -> None:
    for stream in (False, True):
        response = await complete(echo=True, logprobs=1, max_tokens=0, stream=stream)
        if stream:
            assert '"text":"hi"' in response.text and '"Hello"' not in response.text
            continue
        (choice,) = response.json()["choices"]
        assert (choice["text"], choice["finish_reason"]) == ("hi", "length")
        assert choice["logprobs"]["tokens"] == ["h", "i"]
        assert response.json()["usage"]["completion_tokens"] == 0


async def test_prompt_logprobs_name_every_position() -> None:
    for reply in (await chat(prompt_logprobs=1), await complete(prompt_logprobs=1)):
        payload = reply.json()
        scores = payload.get("prompt_logprobs") or payload["choices"][0]["prompt_logprobs"]
        assert scores[0] is None
        assert all({"logprob", "rank", "decoded_token"} == set(*s.values()) for s in scores[1:])


async def test_cached_tokens_are_reported_where_enabled() -> None:
    body = {"prompt": "x" * 40, "stream": False}
    reply = await post("/v1/completions", body, enable_prompt_tokens_details=True)
    assert reply.json()["usage"]["prompt_tokens_details"]["cached_tokens"] == 32


async def test_messages_become_a_prompt_by_the_template() -> None:
    client = FakeEngineClient()
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    tools = [{"type": "function", "function": {"name": "f"}}]
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": parts}]
    await chat(client, messages=messages, tools=tools, tool_choice="none")
    assert client.seen[0][0]["prompt"] == "<system>s\n<user>a\nb\n[1 tools]<assistant>"


async def test_a_final_message_can_be_continued() -> None:
    client = FakeEngineClient()
    messages = [*HI, {"role": "assistant", "content": "So"}]
    options = {"add_generation_prompt": False, "continue_final_message": True, "echo": True}
    reply = (await chat(client, messages=messages, **options)).json()
    assert client.seen[0][0]["prompt"] == "<user>hi\n<assistant>So"
    assert reply["choices"][0]["message"]["content"] == "SoHello"


async def test_a_trusted_request_brings_its_own_template() -> None:
    client = FakeEngineClient()
    body = {"messages": HI, "chat_template": "T{{ messages[0].content }}"}
    reply = await post("/v1/chat/completions", body, client, trust_request_chat_template=True)
    assert reply.status_code == 200
    assert client.seen[0][0]["prompt"] == "Thi"


async def test_the_server_can_have_a_template_and_a_role_of_its_own() -> None:
    client = FakeEngineClient()
    options = {"chat_template": "S{{ messages[0].content }}", "response_role": "bot"}
    reply = await post("/v1/chat/completions", {"messages": HI}, client, **options)
    assert client.seen[0][0]["prompt"] == "Shi"
    assert reply.json()["choices"][0]["message"]["role"] == "bot"


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_unexpected_error_shows_only_an_id(path: str) -> None:
    client = FakeEngineClient()
    client.failure = RuntimeError("secret /etc/passwd 10.0.0.1")
    async with http(client) as session:
        headers = {"X-Request-Id": "mine"}
        body = {"messages": HI, "prompt": "a"}
        response = await session.post(path, json=body, headers=headers)
    message = error_of(response)["message"]
    assert response.status_code == 500
    assert "mine" in message and "secret" not in message and "/etc" not in message


async def test_tokens_and_text_turn_into_each_other() -> None:
    tokens = (await post("/tokenize", {"prompt": "hé", "return_token_strs": True})).json()
    assert tokens == {
        "count": 3,
        "max_model_len": 128,
        "tokens": [104, 195, 169],
        "token_strs": ["<104>", "<195>", "<169>"],
    }
    assert (await post("/detokenize", {"tokens": tokens["tokens"]})).json() == {"prompt": "hé"}
    assert (await post("/tokenize", {"prompt": ""})).json()["count"] == 0
    whole = (await post("/tokenize", {"messages": HI})).json()
    assert bytes(whole["tokens"]).decode() == "<user>hi\n<assistant>"


async def test_models_are_listed_and_described() -> None:
    async with http() as session:
        listed = (await session.get("/v1/models")).json()["data"]
        assert [entry["id"] for entry in listed] == ["tiny", "alias"]
        assert listed[0]["max_model_len"] == 128
        assert (await session.get("/v1/models/alias")).json() == listed[1]
