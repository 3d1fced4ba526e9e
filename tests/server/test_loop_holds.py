"""No request holds the event loop: what others wait for is measured, in processor time."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import logging
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import hypothesis
import pytest
from hypothesis import settings
from hypothesis import strategies as st

from tests.server.fake_client import FakeEngineClient
from tests.server.running import running
from vllm_lite.config.pooling import PoolingFacts
from vllm_lite.errors import RequestError
from vllm_lite.server.body import (
    MAX_BODY_BYTES,
    MAX_DEPTH,
    MAX_NAMES,
    MAX_VALUES,
    BodyMeter,
    decode_json,
)
from vllm_lite.server.pooling.protocol import MAX_INPUTS

# Seconds of processor time of one turn of the event loop. Another thread may hold Python's lock
# as long, which is the same to whoever waits.
LIMIT = 0.05
CHAT, COMPLETIONS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
MESSAGES = "/v1/messages"


class Holds:
    """The longest turn so far."""

    longest = 0.0


@contextmanager
def measured() -> Iterator[Holds]:
    """Measures every callback of asyncio's own event loop."""
    found = Holds()
    run = asyncio.events.Handle._run

    def timed(handle: Any) -> None:
        began = time.thread_time()
        run(handle)
        found.longest = max(found.longest, time.thread_time() - began)

    asyncio.events.Handle._run = timed  # type: ignore[method-assign]
    try:
        yield found
    finally:
        asyncio.events.Handle._run = run  # type: ignore[method-assign]


def sent(address: tuple[str, int], raw: bytes) -> bytes:
    """The server's answer, which may come before it has read everything."""
    parts = []
    with socket.create_connection(address, timeout=60) as connection:
        with contextlib.suppress(ConnectionError):
            connection.sendall(raw)
        with contextlib.suppress(ConnectionError):
            while part := connection.recv(1 << 20):
                parts.append(part)
    return b"".join(parts)


def many(one: bytes, count: int) -> bytes:
    return b",".join([one] * count)


N = MAX_VALUES
ATTACKS: dict[str, tuple[str, bytes]] = {
    "unknown keys": (CHAT, b"{" + b",".join(b'"k%d":1' % i for i in range(MAX_NAMES - 9)) + b"}"),
    "3 million keys": (CHAT, b"{" + b",".join(b'"k%d":1' % i for i in range(10**6)) + b"}"),
    "prompt ids": (COMPLETIONS, b'{"prompt":[' + many(b"7", N - 9) + b"]}"),
    "prompt ids, the last none": (COMPLETIONS, b'{"prompt":[' + many(b"7", N - 9) + b",9999]}"),
    "prompts": (COMPLETIONS, b'{"prompt":[' + many(b'"a"', N - 9) + b"]}"),
    "a long prompt": (COMPLETIONS, b'{"prompt":"' + b"a" * (MAX_BODY_BYTES - 100) + b'"}'),
    "a long broken body": (COMPLETIONS, b'{"prompt":"' + b"a" * (MAX_BODY_BYTES - 100)),
    "a broken list": (COMPLETIONS, b'{"prompt":[' + many(b"7", N - 9) + b",NaN]}"),
    "empty lists": (CHAT, b'{"messages":[' + many(b"[]", MAX_NAMES - 9) + b"]}"),
    "messages of numbers": (CHAT, b'{"messages":[' + many(b"1", 16384) + b"]}"),
    "turns of numbers": (
        MESSAGES,
        b'{"model":"tiny","max_tokens":1,"messages":[' + many(b"1", 16384) + b"]}",
    ),
    "turns of blocks": (
        MESSAGES,
        b'{"model":"tiny","max_tokens":1,"messages":['
        + many(b'{"role":"no","content":[1,2,3,4,5,6,7]}', 16384)
        + b"]}",
    ),
    "items of numbers": (RESPONSES, b'{"input":[' + many(b"1", N - 9) + b"]}"),
    "stop tokens that are none": (
        CHAT,
        b'{"messages":[],"stop_token_ids":[' + many(b'"a"', N - 9) + b"]}",
    ),
    "bad words": (COMPLETIONS, b'{"prompt":"a","bad_words":[' + many(b'"aa"', N - 9) + b"]}"),
    "a bias of all": (
        COMPLETIONS,
        b'{"prompt":"a","logit_bias":{' + b",".join(b'"%d":"a"' % i for i in range(16384)) + b"}}",
    ),
    "allowed tokens": (
        COMPLETIONS,
        b'{"prompt":"a","allowed_token_ids":[' + many(b"7", N - 9) + b"]}",
    ),
    "tokens of no vocabulary": ("/detokenize", b'{"tokens":[' + many(b"999", N - 9) + b"]}"),
    "tokens": ("/detokenize", b'{"tokens":[' + many(b"97", N - 9) + b"]}"),
    "a text to tokenize": (
        "/tokenize",
        b'{"prompt":"' + b"a " * (1 << 19) + b'","return_token_strs":true}',
    ),
    "a long text to tokenize": (
        "/tokenize",
        b'{"prompt":"' + b"a " * (1 << 21) + b'","return_token_strs":true}',
    ),
    "a long text to truncate": (
        COMPLETIONS,
        b'{"truncate_prompt_tokens":3,"prompt":"' + b"a " * (1 << 21) + b'"}',
    ),
    "a long text of wide characters": (
        COMPLETIONS,
        b'{"prompt":"' + "é😀".encode() * (MAX_BODY_BYTES // 6 - 9) + b'"}',
    ),
    "a deep schema": (
        CHAT,
        b'{"messages":[{"role":"user","content":"a"}],"structured_outputs":{"json":'
        + b'{"a":' * 250
        + b"1"
        + b"}" * 250
        + b"}}",
    ),
    "a wide schema": (
        CHAT,
        b'{"messages":[{"role":"user","content":"a"}],"structured_outputs":{"json":{"enum":['
        + many(b"{}", MAX_NAMES - 99)
        + b"]}}}",
    ),
}

_TEXTS = many(b'"a text"', MAX_INPUTS)
OF_POOLING = {
    "texts": ("/v1/embeddings", b'{"input":[' + _TEXTS + b"]}"),
    "texts in numbers": ("/v1/embeddings", b'{"input":[' + many(b"[7]", MAX_INPUTS) + b"]}"),
    "texts in bytes": (
        "/v1/embeddings",
        b'{"encoding_format":"base64","input":[' + _TEXTS + b"]}",
    ),
    "too many texts": ("/v1/embeddings", b'{"input":[' + many(b'"a"', N - 9) + b"]}"),
    "conversations": (
        "/v1/embeddings",
        b'{"messages":[' + many(b'[{"role":"user","content":"a"}]', 300) + b"]}",
    ),
    "vectors of tokens": (
        "/pooling",
        b'{"task":"token_embed","input":[' + many(b'"' + b"a" * 100 + b'"', 1000) + b"]}",
    ),
    "documents": ("/rerank", b'{"query":"a","documents":[' + _TEXTS + b"]}"),
    "pairs": ("/score", b'{"text_1":[' + _TEXTS + b'],"text_2":[' + _TEXTS + b"]}"),
}


@pytest.mark.parametrize("name", [*ATTACKS, *OF_POOLING])
async def test_no_request_holds_the_event_loop(name: str) -> None:
    path, body = (ATTACKS | OF_POOLING)[name]
    pooling = PoolingFacts(size=64) if name in OF_POOLING else None
    head = f"POST {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n"
    head += f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    async with running(FakeEngineClient(pooling=pooling)) as server:
        # Reading source files for a traceback is no part of a request.
        logging.disable(logging.ERROR)
        gc.freeze()  # as a server does that is ready: other tests' objects are no part, either
        address = server.listener.socket.getsockname()[:2]
        with measured() as found:
            answer = await asyncio.to_thread(sent, address, head.encode() + body)
    logging.disable(logging.NOTSET)
    assert b"HTTP/1.1 4" in answer[:12] or b"HTTP/1.1 200" in answer[:14], answer[:300]
    assert "token" in name or name in OF_POOLING or len(answer) < 3000
    assert found.longest < LIMIT, f"{found.longest * 1000:.0f} ms"


_json = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-9, 9), st.text('ab"\\,:[]{}é\n', max_size=9)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.text('a"\\,:{', max_size=3), inner)
    ),
    max_leaves=20,
)


def _counted(value: Any) -> tuple[int, int]:
    """Commas, and names with lists and objects, of a value's JSON."""
    inner = (
        [*value.values()] if isinstance(value, dict) else value if isinstance(value, list) else []
    )
    commas = max(len(inner) - 1, 0)
    names = isinstance(value, dict | list) + (len(value) if isinstance(value, dict) else 0)
    for one in inner:
        more = _counted(one)
        commas, names = commas + more[0], names + more[1]
    return commas, names


@hypothesis.given(
    value=_json, cuts=st.lists(st.integers(0, 300), max_size=5), escapes=st.booleans()
)
@settings(max_examples=400, deadline=None, database=None, derandomize=True)
def test_a_body_is_counted_right_however_it_is_cut(
    value: Any, cuts: list[int], escapes: bool
) -> None:
    raw = json.dumps(value, ensure_ascii=escapes).encode()
    meter, last = BodyMeter(), 0
    for cut in [*sorted(cuts), len(raw)]:
        meter.feed(raw[last:cut])
        last = max(last, min(cut, len(raw)))
    assert (meter._values, meter._names) == _counted(value)
    assert meter._depth == 0 and not meter._is_in_text
    assert decode_json(raw) == value


def test_a_deep_body_is_refused_at_its_depth() -> None:
    BodyMeter().feed(b"[" * MAX_DEPTH + b"]" * MAX_DEPTH)
    with pytest.raises(RequestError, match="nested too deeply"):
        BodyMeter().feed(b"[" * (MAX_DEPTH + 1))
