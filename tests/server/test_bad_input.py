"""Every bad input is a 4xx in the one error shape, and its message names the field."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.server.fake_client import FakeEngineClient
from tests.server.harness import HI, chat, complete, error_of, http, post

CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"

# Fields that both APIs check alike: (body, param).
SHARED: list[tuple[dict[str, Any], str]] = [
    ({"temperature": -1}, "temperature"),
    ({"temperature": 1e9}, "temperature"),
    ({"temperature": "NaN"}, "temperature"),
    ({"temperature": "hot"}, "temperature"),
    ({"top_p": 0}, "top_p"),
    ({"top_p": 1.5}, "top_p"),
    ({"top_k": -2}, "top_k"),
    ({"min_p": -0.1}, "min_p"),
    ({"presence_penalty": 3}, "presence_penalty"),
    ({"frequency_penalty": -3}, "frequency_penalty"),
    ({"repetition_penalty": 0}, "repetition_penalty"),
    ({"n": 0}, "n"),
    ({"n": 10_000}, "n"),
    ({"n": 2, "temperature": 0}, "n"),
    ({"seed": 2**63}, "seed"),
    ({"seed": 10**30}, "seed"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": -1}, "max_tokens"),
    ({"max_tokens": 5.5}, "max_tokens"),
    ({"max_tokens": "abc"}, "max_tokens"),
    ({"max_tokens": 129}, "max_tokens"),
    ({"min_tokens": -1}, "min_tokens"),
    ({"min_tokens": 17, "max_tokens": 16}, "min_tokens"),
    ({"stop": ["a", "b", "c", "d", "e"]}, "stop"),
    ({"stop": [""]}, "stop"),
    ({"stop": 7}, "stop"),
    ({"stop_token_ids": [-1]}, "stop_token_ids"),
    ({"stop_token_ids": [99999]}, "stop_token_ids"),
    ({"logit_bias": {"99999": 1}}, "logit_bias"),
    ({"logit_bias": {"-1": 1}}, "logit_bias"),
    ({"logit_bias": {"x": 1}}, "logit_bias"),
    ({"allowed_token_ids": []}, "allowed_token_ids"),
    ({"allowed_token_ids": [99999]}, "allowed_token_ids"),
    ({"bad_words": [""]}, "bad_words"),
    ({"prompt_logprobs": -2}, "prompt_logprobs"),
    ({"prompt_logprobs": 10_000}, "prompt_logprobs"),
    ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
    ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
    ({"truncate_prompt_tokens": 129}, "truncate_prompt_tokens"),
    ({"truncation_side": "middle"}, "truncation_side"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"stream": "perhaps"}, "stream"),
    ({"cache_salt": ""}, "cache_salt"),
    ({"cache_salt": "a/b"}, "cache_salt"),
    ({"cache_salt": "a" * 129}, "cache_salt"),
    ({"request_id": "a" * 257}, "request_id"),
    ({"priority": "high"}, "priority"),
    ({"response_format": {"type": "yaml"}}, "response_format.type"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
    (
        {"response_format": {"type": "json_schema", "json_schema": {}}},
        "response_format.json_schema",
    ),
    ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs"),
    ({"structured_outputs": {"choice": []}}, "structured_outputs.choice"),
    ({"structured_outputs": {"regex": ""}}, "structured_outputs.regex"),
    ({"structured_outputs": {"regex": {"type": "object"}}}, "structured_outputs.regex"),
    ({"structured_outputs": {"grammar": {"type": "object"}}}, "structured_outputs.grammar"),
    ({"structured_outputs": {"structural_tag": {}}}, "structured_outputs.structural_tag"),
    ({"structured_outputs": {"json": '{"const": "\\ud800"}'}}, "structured_outputs"),
    (
        {"response_format": {"type": "json_object"}, "structured_outputs": {"regex": "a"}},
        "response_format",
    ),
    ({"logprob_token_ids": [1]}, "logprob_token_ids"),
    ({"prompt_logprobs": "2"}, "prompt_logprobs"),
    ({"allowed_token_ids": [97, 98], "bad_words": ["a", "b"]}, "allowed_token_ids"),
    ({"allowed_token_ids": [256], "min_tokens": 1}, "allowed_token_ids"),
    (
        {
            "allowed_token_ids": [97, 98],
            "bad_words": ["a"],
            "stop_token_ids": [98],
            "min_tokens": 1,
        },
        "allowed_token_ids",
    ),
    ({"stream_interval": 0}, "stream_interval"),
    ({"repetition_detection": {"max_pattern_size": 4}}, "repetition_detection.min_count"),
    ({"thinking_token_budget": -2}, "thinking_token_budget"),
    ({"kv_transfer_params": {"a": 1}}, "kv_transfer_params"),
]
ONLY_CHAT: list[tuple[dict[str, Any], str]] = [
    ({"messages": None}, "messages"),
    ({"messages": "hi"}, "messages"),
    ({"messages": []}, "messages"),
    ({"messages": ["hi"]}, "messages.0"),
    ({"messages": [{"content": "hi"}]}, "messages.0.role"),
    ({"messages": [*HI, {"role": 7, "content": "hi"}]}, "messages.1.role"),
    ({"messages": [{"role": "user"}]}, "messages.0.content"),
    ({"messages": [{"role": "user", "content": None}]}, "messages.0.content"),
    ({"messages": [{"role": "user", "content": {}}]}, "messages.0.content"),
    ({"messages": [{"role": "user", "content": [7]}]}, "messages.0.content.0"),
    (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
        "messages.0.content.0.type",
    ),
    ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages.0.content.0.text"),
    (
        {"messages": [{"role": "user", "content": [{"type": ["text"], "text": "a"}]}]},
        "messages.0.content.0.type",
    ),
    ({"messages": [{"role": "user", "content": ["a"] * 9000}] * 2}, "messages"),
    ({"messages": [{"role": "assistant", "tool_calls": [1]}]}, "messages.0.tool_calls"),
    ({"max_completion_tokens": 0}, "max_completion_tokens"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": 10_000}, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": -1}, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": "2"}, "top_logprobs"),
    ({"logprobs": "2"}, "logprobs"),
    ({"tool_choice": "auto"}, "tool_choice"),
    ({"top_logprobs": 2}, "top_logprobs"),
    ({"tools": []}, "tools"),
    ({"tools": [{"type": "function"}]}, "tools.0.function"),
    ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tool_choice"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"chat_template": "{{ messages }}"}, "chat_template"),
    ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
    ({"continue_final_message": True}, "continue_final_message"),
    ({"modalities": ["audio"]}, "modalities"),
    ({"functions": [{"name": "f"}]}, "functions"),
]
ONLY_COMPLETION: list[tuple[dict[str, Any], str]] = [
    ({"prompt": None}, "prompt"),
    ({"prompt": ""}, "prompt"),
    ({"prompt": []}, "prompt"),
    ({"prompt": [""]}, "prompt.0"),
    ({"prompt": ["a", 7]}, "prompt.1"),
    ({"prompt": ["a", []]}, "prompt.1"),
    ({"prompt": [True]}, "prompt.0"),
    ({"prompt": [-1]}, "prompt"),
    ({"prompt": [[1], [-1]]}, "prompt.1"),
    ({"prompt": [999_999]}, "prompt"),
    ({"prompt": [10**19]}, "prompt"),
    ({"prompt": {"text": "a"}}, "prompt"),
    ({"prompt": ["a"] * 1025}, "prompt"),
    ({"logprobs": 10_000}, "logprobs"),
    ({"logprobs": -2}, "logprobs"),
    ({"logprobs": "2"}, "logprobs"),
    ({"best_of": 2}, "best_of"),
    ({"suffix": "tail"}, "suffix"),
    ({"prompt_embeds": "AAAA"}, "prompt_embeds"),
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("body", "param"), SHARED + ONLY_CHAT, ids=str)
async def test_a_bad_chat_request_names_its_field(
    body: dict[str, Any], param: str, stream: bool
) -> None:
    client = FakeEngineClient()
    options = {"stream": True} if stream and "stream_options" not in body else {}
    response = await chat(client, **{**options, **body})
    error = error_of(response)
    assert (response.status_code, error["param"]) == (400, param)
    assert param.split(".")[0] in error["message"]
    assert client.seen == []


@pytest.mark.parametrize(("body", "param"), SHARED + ONLY_COMPLETION, ids=str)
async def test_a_bad_completion_request_names_its_field(body: dict[str, Any], param: str) -> None:
    client = FakeEngineClient()
    response = await complete(client, **body)
    error = error_of(response)
    assert (response.status_code, error["param"]) == (400, param)
    assert param.split(".")[0] in error["message"]
    assert client.seen == []


async def test_every_bad_key_of_a_bias_is_named() -> None:
    for bias, words in (
        ({"5": 1, "258": 1, "9999": 2}, "258, 9999"),
        ({"5": 1, "x": 1, "7.5": 2}, "'x', '7.5'"),
    ):
        error = error_of(await complete(logit_bias=bias))
        assert error["param"] == "logit_bias" and error["message"].endswith(words)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"bad_words": ["a", "b"]}, "allowed_token_ids and bad_words leave"),
        ({"stop_token_ids": [97, 98], "min_tokens": 2}, "allowed_token_ids and min_tokens leave"),
    ],
)
async def test_fields_that_leave_no_token_are_named(fields: dict[str, Any], words: str) -> None:
    error = error_of(await complete(allowed_token_ids=[97, 98], **fields))
    assert error["message"].startswith(words)
    assert (await complete(allowed_token_ids=[97, 98, 99], **fields)).status_code == 200


@pytest.mark.parametrize(
    ("raw", "words", "param"),
    [
        (b"", "empty", None),
        (b"{", "not valid JSON", None),
        (b'{"messages": [}', "line 1 column", None),
        (b"\xff\xfe", "UTF-8", None),
        (b"[]", "object", None),
        (b'"hi"', "object", None),
        (b'{"temperature": NaN}', "temperature", "temperature"),
        (b'{"temperature": -Infinity}', "temperature", "temperature"),
        (b'{"temperature": 1e999}', "temperature", "temperature"),
        (b'{"logit_bias": {"5": NaN}}', "finite", "logit_bias.5"),
        (b'{"a": ["x", {"b": Infinity}]}', "finite", "a.1.b"),
        (b'{"messages": "\\ud800"}', "surrogate", None),
        (b'{"a": [{"\\udc00": 1}]}', "surrogate", None),
        (b"[" * 100_000, "nested", None),
        (b'{"a": ' + b"[" * 960 + b"NaN" + b"]" * 960 + b"}", "nested", None),
        (b'{"seed": ' + b"9" * 5000 + b"}", "digits", None),
    ],
)
async def test_a_body_that_is_no_json_object_is_refused(
    raw: bytes, words: str, param: str | None
) -> None:
    async with http() as session:
        headers = {"Content-Type": "application/json"}
        response = await session.post(CHAT, content=raw, headers=headers)
    error = error_of(response)
    assert (response.status_code, error["param"]) == (400, param)
    assert words in error["message"]


@pytest.mark.parametrize("media_type", ["", "text/plain", "application/x-www-form-urlencoded"])
async def test_the_body_has_to_be_announced_as_json(media_type: str) -> None:
    async with http() as session:
        headers = {"Content-Type": media_type} if media_type else {}
        response = await session.post(CHAT, content=b'{"messages": []}', headers=headers)
    assert (response.status_code, "Content-Type" in error_of(response)["message"]) == (400, True)


async def test_media_type_may_have_a_charset() -> None:
    async with http() as session:
        headers = {"Content-Type": "application/json; charset=utf-8"}
        raw = b'{"messages": [{"role": "user", "content": "hi"}]}'
        assert (await session.post(CHAT, content=raw, headers=headers)).status_code == 200


@pytest.mark.parametrize("path", [CHAT, COMPLETION, "/tokenize"])
async def test_an_unknown_model_is_a_404_that_names_the_field(path: str) -> None:
    response = await post(path, {"model": "nope", "messages": HI, "prompt": "hi"})
    error = error_of(response)
    assert (response.status_code, error["type"], error["param"]) == (404, "NotFoundError", "model")


@pytest.mark.parametrize("stream", [False, True])
async def test_an_over_long_prompt_is_refused_with_both_numbers(stream: bool) -> None:
    for response in (
        await complete(prompt="x" * 200, stream=stream),
        await complete(prompt=[1] * 128, stream=stream),
        await chat(messages=[{"role": "user", "content": "x" * 200}], stream=stream),
    ):
        message = error_of(response)["message"]
        assert response.status_code == 400
        assert "128" in message and any(n in message for n in ("200", "128", "218"))


async def test_a_text_that_cannot_fit_is_not_even_tokenised() -> None:
    response = await complete(prompt="x" * 40_000)
    assert (response.status_code, error_of(response)["param"]) == (400, "prompt")
    assert "40000 characters" in error_of(response)["message"]


async def test_numbers_and_flags_are_read_leniently() -> None:
    client = FakeEngineClient()
    body = {"n": "2", "temperature": 1, "max_tokens": "5", "ignore_eos": "yes", "seed": 7.0}
    assert (await complete(client, **body)).status_code == 200
    params = client.seen[0][1]
    assert (params.n, params.max_tokens, params.ignore_eos, params.seed) == (2, 5, True, 7)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"top_k": False}, "top_k"),
        ({"min_p": True}, "min_p"),
        ({"stop_token_ids": [1, True]}, "stop_token_ids"),
        ({"echo": 1}, "echo"),
        ({"ignore_eos": 0.0}, "ignore_eos"),
        ({"stream": True, "stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
    ],
)
async def test_a_flag_is_no_number(fields: dict[str, Any], param: str) -> None:
    reply = await complete(**fields)
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == param


async def test_unknown_fields_are_dropped() -> None:
    assert (await chat(no_such_field=1, user="me", metadata={}, store=True)).status_code == 200


async def test_unknown_fields_are_logged_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    monkeypatch.setattr(
        "vllm_lite.server.body.logger.warning", lambda text, *words: lines.append(text % words)
    )
    monkeypatch.setattr("vllm_lite.server.body._warned", set())
    body = {f"strange_{index:05}": 1 for index in range(5000)}
    for _ in range(2):
        assert (await complete(**body)).status_code == 200
    (line,) = lines
    assert "strange_00000" in line and len(line) < 1000


async def test_a_text_of_which_only_a_part_is_kept_has_a_limit_too() -> None:
    text = "x" * (1 << 22)
    assert (await complete(prompt=text, truncate_prompt_tokens=3)).status_code == 200
    for response in (
        await complete(prompt=text + "x", truncate_prompt_tokens=3),
        await post("/tokenize", {"prompt": text + "x"}),
    ):
        assert (response.status_code, error_of(response)["param"]) == (400, "prompt")


async def test_unsupported_fields_that_say_off_are_fine() -> None:
    off = {"use_beam_search": False, "structured_outputs": None, "suffix": "", "best_of": 1}
    assert (await complete(**off)).status_code == 200
    assert (await chat(response_format={"type": "text"}, tool_choice="none")).status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nope", 404),
        ("POST", "/v1/chat/completions/", 404),
        ("GET", CHAT, 405),
        ("HEAD", "/health", 405),
        ("GET", "/v1/models/nope", 404),
    ],
)
async def test_unknown_routes_and_methods_have_the_same_shape(
    method: str, path: str, status: int
) -> None:
    async with http() as session:
        response: httpx.Response = await session.request(method, path)
    assert response.status_code == status
    if method != "HEAD":
        error_of(response)
    if status == 405:
        assert response.headers["allow"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "prompt"),
        ({"prompt": 5}, "prompt"),
        ({"messages": []}, "messages"),
        ({"messages": HI, "chat_template": "x"}, "chat_template"),
    ],
)
async def test_a_bad_tokenize_request_names_its_field(body: dict[str, Any], param: str) -> None:
    response = await post("/tokenize", body)
    assert (response.status_code, error_of(response)["param"]) == (400, param)


@pytest.mark.parametrize(
    ("tokens", "param"), [(None, "tokens"), ([-1], "tokens.0"), ([65, 999], "tokens.1")]
)
async def test_a_bad_detokenize_request_names_its_field(tokens: Any, param: str) -> None:
    response = await post("/detokenize", {"tokens": tokens})
    assert (response.status_code, error_of(response)["param"]) == (400, param)
