"""Templates that take for ever or all memory: their request is refused, and nothing else waits."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from typing import Any

import pytest

from tests.server.fake_client import ByteTokenizer, FakeEngineClient
from tests.server.harness import HI, error_of, http, post
from vllm_lite.server import context

CHAT = "/v1/chat/completions"
COUNT = "/v1/messages/count_tokens"
ENDLESS = "{% for a in range(99999) %}{% for b in range(99999) %}{{ a }}{% endfor %}{% endfor %}"
SILENT = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
LARGE = [
    "{{ 'a' * 10**10 }}",
    "{{ (messages * 10**9) | length }}",
    "{{ '%10000000000d' | format(1) }}",
    "{{ '{:10000000000}'.format(1) }}",
    "{{ 'a'.ljust(10**10) }}",
    "{{ 'a' | center(10**10) }}",
    "{{ 'a' | indent(10**10, true) }}",
    "{{ range(99999) | join('a' * 10**6) }}",
    "{% set n = namespace(s='a') %}{% for _ in range(60) %}{% set n.s = n.s ~ n.s %}{% endfor %}",
]


def client_with(template: str) -> FakeEngineClient:
    client = FakeEngineClient()
    client.tokenizer = ByteTokenizer(template)
    return client


@pytest.fixture
def short_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context, "MAX_RENDER_SECONDS", 3.0)


@pytest.mark.usefixtures("short_limit")
@pytest.mark.parametrize("template", [SILENT, ENDLESS])
async def test_an_endless_template_is_a_refusal_and_the_others_do_not_wait(template: str) -> None:
    async with http(client_with(template)) as session:
        asked = asyncio.create_task(session.post(CHAT, json={"messages": HI}))
        # Of the loop's own time: a machine that stalls the whole process says nothing of it. A loop
        # that waited for the template, idle, would answer once or twice.
        pauses = []
        while not asked.done():
            start = time.thread_time()
            assert (await session.get("/health")).status_code == 200
            pauses.append(time.thread_time() - start)
            await asyncio.sleep(0.02)
        answer = await asked
        assert answer.status_code == 400
        assert "more than 3 seconds" in error_of(answer)["message"] or template == ENDLESS
        assert len(pauses) > 5 and max(pauses) < 0.2
        counted = await session.post(COUNT, json={"messages": HI, "max_tokens": 1})
        assert counted.status_code == 400
    assert (await post(CHAT, {"messages": HI})).status_code == 200


@pytest.mark.parametrize("template", LARGE)
async def test_a_template_that_takes_all_memory_is_a_refusal(template: str) -> None:
    answer = await post(CHAT, {"messages": HI}, client_with(template))
    assert answer.status_code == 400
    assert "memory" in error_of(answer)["message"] or "long" in error_of(answer)["message"]
    assert (await post(CHAT, {"messages": HI})).status_code == 200


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL])
async def test_a_process_that_does_not_answer_is_replaced(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (await post(CHAT, {"messages": HI})).status_code == 200
    monkeypatch.setattr(context, "MAX_RENDER_SECONDS", 3.0)
    lost = [process._process.pid for process in context._idle]
    for pid in lost:
        os.kill(pid, number)
    statuses = [(await post(CHAT, {"messages": HI})).status_code for _ in range(len(lost) + 1)]
    assert statuses[-1] == 200 and set(statuses) <= {200, 400}
    assert not {process._process.pid for process in context._idle} & set(lost)


@pytest.mark.parametrize("value", [10**40, 1.5, "é\U0001f600", {"a": [None, True]}])
async def test_values_reach_the_template_as_they_were_sent(value: Any) -> None:
    client = client_with("{{ value | tojson }}")
    body = {"messages": HI, "chat_template_kwargs": {"value": value}}
    assert (await post(CHAT, body, client)).status_code == 200
    assert client.seen[0][0]["prompt"] == json.dumps(value, ensure_ascii=False)
