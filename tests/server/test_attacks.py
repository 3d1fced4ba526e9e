"""Attacks that have worked on serving engines, each failing here.

One test for a class of published faults: what is sent is the attack, what is checked is that it
gets nothing. Those on a grammar's compilation and on a model's files have tests of their own.
"""

from __future__ import annotations

import asyncio
import pickle
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.server.fake_client import FakeEngineClient
from tests.server.harness import HI, chat, error_of, http, post
from tests.server.running import running
from tests.unit.engine.engines import async_engine
from vllm_lite.config.server import ServerConfig
from vllm_lite.engine.link.channel import decode_from_core, decode_to_core
from vllm_lite.engine.link.messages import Undecodable
from vllm_lite.parsers.events import collect
from vllm_lite.parsers.pipeline import OutputParser, OutputParserConfig
from vllm_lite.parsers.tools.spec import ToolSpec
from vllm_lite.server.app import build_app

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


class Bomb:
    """Unpickled, it makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (Path.touch, (self.path,))


def test_bytes_between_processes_cannot_run(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    for data in (pickle.dumps(Bomb(mark)), b"\x81\xa4type\xa5shell", b"", b"\xc1"):
        with pytest.raises(msgspec.DecodeError):
            decode_from_core(data)
        assert isinstance(decode_to_core(data), Undecodable)
    assert not mark.exists()


@pytest.mark.parametrize("field", ["prompt_embeds", "multi_modal_data", "mm_processor_kwargs"])
async def test_tensors_and_code_revisions_are_not_taken_from_requests(field: str) -> None:
    answer = await post(COMPLETIONS, {"prompt": "a", field: {"code_revision": "evil"}})
    assert answer.status_code in (200, 400)
    client = FakeEngineClient()
    await post(COMPLETIONS, {"prompt": "a", field: "gASV"}, client)
    assert all(field not in str(prompt) for prompt, _, _ in client.seen)


@pytest.mark.parametrize(
    ("parser", "text"),
    [
        ("pythonic", "[get(city=__import__('os').system('touch {mark}'))]"),
        ("pythonic", "[get(city=open('{mark}', 'w'))]"),
        (
            "qwen3_coder",
            "<tool_call>\n<function=get>\n<parameter=city>\n__import__('os').system('touch {mark}')"
            "\n</parameter>\n</function>\n</tool_call>",
        ),
        ("hermes", '<tool_call>{{"name": "get", "arguments": __import__("os")}}</tool_call>'),
    ],
)
def test_a_models_text_is_never_run(parser: str, text: str, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    tool = ToolSpec("get", {"type": "object", "properties": {"city": {"type": "object"}}}, None)
    reader = OutputParser(
        OutputParserConfig(reasoning_parser=None, tool_parser=parser, tools=(tool,))
    )
    collect([*reader.feed(text.format(mark=mark)), *reader.finish()])
    assert not mark.exists()


@pytest.mark.parametrize(
    "line",
    [
        "GET /v1/models",
        "GET //v1/models",
        "GET /./v1/models",
        "GET /health/../v1/models",
        "GET /%761/models",
        "GET /v1/models?/health",
        "GET /health%2f..%2fv1/models",
        "GET http://server/health/../v1/models",
        "GET http://server/v1/models",
        "GET /api/v1/models",
        "GET /api/api/v1/models",
        "GET /openapi.json",
        "POST /tokenize",
        "POST /invocations",
    ],
)
async def test_no_spelling_of_a_path_goes_around_the_keys(line: str) -> None:
    method, target = line.split()
    extra = "x-forwarded-prefix: /health\r\nx-original-url: /health\r\nx-forwarded-host: a/health"
    raw = f"{method} {target} HTTP/1.1\r\nhost: a/health?\r\n{extra}\r\nconnection: close\r\n"
    async with running(FakeEngineClient(), api_key=["k"], root_path="/api") as server:
        answer = await server.send(f"{raw}content-length: 0\r\n\r\n".encode())
    assert answer.startswith((b"HTTP/1.1 401 ", b"HTTP/1.1 400 ")), answer
    assert b"tiny" not in answer


@pytest.mark.parametrize("key", ["", "k", "key", "keykey", "KEY ", "\x00", "key\xff"])
async def test_only_the_whole_key_opens(key: str) -> None:
    async with http(api_key=["the-key"]) as session:
        for name, value in (("authorization", f"Bearer {key}"), ("x-api-key", key)):
            headers = {name.encode(): value.encode("latin-1")}
            answer = await session.get("/v1/models", headers=headers)  # type: ignore[arg-type]
            assert answer.status_code == 401


SECRET = "/root/secret.py at 0x7f3a2c"


@pytest.mark.parametrize("stream", [False, True])
async def test_internal_errors_stay_hidden(stream: bool) -> None:
    client = FakeEngineClient()
    client.failure = ValueError(SECRET)
    answer = await chat(client, stream=stream)
    assert "secret" not in answer.text and "0x7f" not in answer.text
    assert "InternalServerError" in answer.text


async def test_dev_server_shows_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_SERVER_DEV_MODE", "1")
    monkeypatch.setenv("HF_TOKEN", "hf-secret-token")
    headers = {"authorization": "Bearer the-secret-key"}
    async with http(api_key=["the-secret-key"], headers=headers) as session:
        for form in ("text", "json"):
            answer = await session.get(f"/server_info?config_format={form}")
            assert answer.status_code == 200
            assert "the-secret-key" not in answer.text and "hf-secret-token" not in answer.text


@pytest.mark.parametrize(
    "url",
    [
        "http://169.254.169.254/latest/meta-data",
        "http://localhost:1\\@example.com/a.png",
        "file:///etc/passwd",
        "data:image/png;base64,AAAA",
    ],
)
async def test_nothing_is_fetched_for_a_request(url: str) -> None:
    part = {"type": "image_url", "image_url": {"url": url}}
    answer = await chat(messages=[{"role": "user", "content": [part]}])
    assert answer.status_code == 400


TEMPLATES = [
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ messages.__init__.__globals__ }}",
    "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
    "{% for key in [].append.__self__.__class__.__base__.__subclasses__() %}{{ key }}{% endfor %}",
]


@pytest.mark.parametrize("template", TEMPLATES)
async def test_a_template_of_a_client_is_refused_or_reaches_nothing(template: str) -> None:
    assert (await chat(chat_template=template)).status_code == 400
    assert (await chat(chat_template_kwargs={"chat_template": template})).status_code == 400
    client = FakeEngineClient()
    body = {"messages": HI, "chat_template": template}
    answer = await post(CHAT, body, client, trust_request_chat_template=True)
    assert answer.status_code == 400 or "class" not in str(client.seen)


@pytest.mark.parametrize("name", ["tokenize", "tokenizer", "messages", "return_tensors"])
async def test_template_arguments_reach_no_argument_of_the_renderer(name: str) -> None:
    answer = await chat(chat_template_kwargs={name: False})
    assert answer.status_code in (200, 400)


UNBOUNDED: list[dict[str, Any]] = [
    {"n": 10**9},
    {"best_of": 10**9, "n": 10**9},
    {"use_beam_search": True, "n": 10**6},
    {"prompt": ["a"] * 100_000},
    {"prompt": [[1]] * 100_000},
    {"prompt": [10**9]},
    {"prompt": [-1]},
    {"prompt": ""},
    {"prompt": []},
    {"prompt": "a" * 10_000_000},
    {"logprobs": 10**9},
    {"prompt_logprobs": 10**9},
    {"min_tokens": 10**9},
    {"max_tokens": 0},
    {"stop": ["a"] * 10_000},
    {"stop": "a" * 1_000_000},
    {"stop_token_ids": [1] * 1_000_000},
    {"allowed_token_ids": [-5]},
    {"logit_bias": {str(i): 1 for i in range(100_000)}},
    {"bad_words": ["a"] * 100_000},
    {"cache_salt": "s" * 100_000},
    {"request_id": "r" * 100_000},
    {"request_id": "a\r\nset-cookie: x"},
    {"seed": 2**80},
    {"truncate_prompt_tokens": 10**9},
    {"stream_interval": -1},
]


@pytest.mark.parametrize("fields", UNBOUNDED, ids=lambda fields: ",".join(fields))
async def test_every_field_has_a_bound(fields: dict[str, Any]) -> None:
    begun = time.monotonic()
    client = FakeEngineClient()
    answer = await post(COMPLETIONS, {"prompt": "hi", **fields}, client)
    assert answer.status_code in (400, 413), answer.text[:300]
    assert len(answer.text) < 2000, "an error must not send the attack back"
    assert time.monotonic() - begun < 20
    assert not client.seen


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "1" * 5000])
@pytest.mark.parametrize("field", ["temperature", "top_p", "presence_penalty", "max_tokens"])
async def test_numbers_are_finite(field: str, number: str) -> None:
    async with http() as session:
        text = f'{{"prompt": "hi", "{field}": {number}}}'
        headers = {"content-type": "application/json"}
        answer = await session.post(COMPLETIONS, content=text, headers=headers)
    assert answer.status_code == 400
    assert error_of(answer)


async def test_deep_bodies_end_nothing() -> None:
    async with http() as session:
        headers = {"content-type": "application/json"}
        for text in ("[" * 100_000, '{"a":' * 100_000, '{"messages":' + "[" * 5000 + "]" * 5000):
            answer = await session.post(CHAT, content=text, headers=headers)
            assert answer.status_code == 400
        assert (await session.get("/health")).status_code == 200


async def test_methods_and_paths_make_no_metrics() -> None:
    async with running(FakeEngineClient()) as server:
        for i in range(50):
            raw = f"PROPFIND /a{i} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n"
            assert (await server.send(raw.encode())).startswith(b"HTTP/1.1 40")
        text = (await server.http.get("/metrics")).text
    assert text.count("http_requests_total{") == 1


@pytest.mark.parametrize(
    "raw",
    [
        b"GET /health HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\n"
        b"transfer-encoding: chunked\r\n\r\n"
        b"0\r\n\r\nGET /v1/models HTTP/1.1\r\nhost: a\r\n\r\n",
        b"GET /health HTTP/1.1\r\nhost: a\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nab",
        b"GET /health HTTP/1.1\r\nhost: a\r\nx: a\x00b\r\n\r\n",
        b"GET /health HTTP/1.1\r\nhost: a\r\n: nameless\r\n\r\n",
        b"GET /\xff\xfe HTTP/1.1\r\nhost: a\r\n\r\n",
    ],
)
async def test_requests_that_two_readers_would_read_differently_are_refused(raw: bytes) -> None:
    async with running(FakeEngineClient(), api_key=["k"]) as server:
        answer = await server.send(raw)
        assert answer.startswith(b"HTTP/1.1 40"), answer
        assert answer.count(b"HTTP/1.1 ") == 1
        assert (await server.http.get("/health")).status_code == 200


async def test_a_salt_keeps_a_prompt_from_being_guessed_by_the_clock() -> None:
    """Whoever has not the salt never hits what was cached under it."""
    async with async_engine() as (engine, _):
        config = ServerConfig(enable_prompt_tokens_details=True)
        async with http(app=build_app(engine, config)) as session:

            async def cached(salt: str | None) -> int:
                body = {"prompt": "x" * 64, "max_tokens": 1, "cache_salt": salt}
                usage = (await session.post(COMPLETIONS, json=body)).json()["usage"]
                return int(usage["prompt_tokens_details"]["cached_tokens"])

            assert await cached("mine") == 0
            assert await cached("mine") > 0
            assert await cached("yours") == 0
            assert await cached(None) == 0


async def test_a_queue_is_bounded_for_every_choice_of_a_request() -> None:
    limits = {"max_num_seqs": 1, "max_num_queued_reqs": 4}
    async with async_engine(**limits) as (engine, _):
        app = build_app(engine, ServerConfig())
        async with http(app=app) as session:

            async def ask(n: int) -> int:
                body = {"prompt": "a", "n": n, "max_tokens": 2, "ignore_eos": True}
                answer = await session.post(COMPLETIONS, json=body)
                if answer.status_code == 429:
                    assert int(answer.headers["retry-after"]) >= 1
                    assert error_of(answer)["code"] == 429
                return answer.status_code

            assert await ask(10) == 429
            assert await ask(5) == 200
            found = await asyncio.gather(*(ask(2) for _ in range(20)))
        assert 429 in found and 200 in found


async def test_the_texts_of_special_tokens_are_text() -> None:
    for text in ("<|image|>", "<image>", "<|im_start|>system", "<|endoftext|>" * 3):
        assert (await chat(messages=[{"role": "user", "content": text}])).status_code == 200
