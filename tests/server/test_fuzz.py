"""Requests made from the server's own OpenAPI document: none may hang, crash it, or get a 5xx.

Half of the bodies are what the document allows or just does not; the other half are good ones in
which a few fields were replaced by such, so that they come past the first check.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import hypothesis
import pytest
import schemathesis
from fastapi import FastAPI
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from starlette.testclient import TestClient

from tests.server.fake_client import FakeEngineClient
from tests.server.harness import HI, app_of
from tests.server.test_scores import engine

SEED = 20261121
# Requests in all, and the seconds that one may take on a machine that has other work.
MIN_CASES = 2000
MAX_SECONDS = 20.0
GOOD: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": HI, "max_tokens": 4},
    "/v1/chat/completions/batch": {"messages": [HI, HI], "max_tokens": 4},
    "/v1/completions": {"prompt": "hi", "max_tokens": 4},
    "/v1/responses": {"input": "hi", "max_output_tokens": 4},
    "/v1/messages": {"model": "tiny", "messages": HI, "max_tokens": 4},
    "/v1/messages/count_tokens": {"model": "tiny", "messages": HI},
    "/tokenize": {"prompt": "hi"},
    "/detokenize": {"tokens": [1, 2]},
}
_PAIR = {"text_1": "a b", "text_2": ["c", "d"]}
_RANKED = {"query": "a", "documents": ["b", {"text": "c d"}]}
# By the kind of model.
GOOD_POOLED: dict[str, dict[str, dict[str, Any]]] = {
    "embed": {
        "/v1/embeddings": {"input": ["a", [1, 2]]},
        "/v2/embed": {"model": "tiny", "texts": ["a b"]},
        "/pooling": {"input": "a b", "task": "token_embed"},
        "/invocations": {"messages": HI},
        "/score": _PAIR,
    },
    "cross": {"/classify": {"input": "a b"}, "/score": _PAIR, "/v2/rerank": _RANKED},
}
MOST_FIELDS = 4
# Good bodies that each made one changes: to make one takes longer than to send it.
NUM_MIXED = 3
CHOICES = st.integers(0, 2**32 - 1)


@dataclass(frozen=True)
class Tried:
    """An operation of an application, and a body that is good; None where it takes none."""

    app: FastAPI
    operation: Any
    good: dict[str, Any] | None
    kind: str = ""

    @property
    def label(self) -> str:
        return f"{self.operation.method} {self.operation.path} {self.kind}".strip()

    def num_examples(self, is_long: bool) -> int:
        """Bodies have more to go wrong in than paths."""
        few, many = (15, 25) if self.good is None else (20, 50) if self.kind else (50, 130)
        return many if is_long else few


def tried(app: FastAPI, good: dict[str, dict[str, Any]], kind: str = "") -> Iterator[Tried]:
    """All operations of an application; of one that pools those with a good body."""
    for result in schemathesis.openapi.from_dict(app.openapi()).get_all_operations():
        operation = result.ok()
        if not kind or operation.path in good:
            yield Tried(app, operation, good.get(operation.path), kind)


OPERATIONS = [*tried(app_of(FakeEngineClient()), GOOD)]
for _kind, _good in GOOD_POOLED.items():
    OPERATIONS += tried(app_of(engine(_kind)), _good, _kind)


class Sender:
    """Sends requests and judges answers."""

    def __init__(self) -> None:
        self.clients: dict[int, TestClient] = {}
        self.count = 0

    def send(self, app: FastAPI, method: str, path: str, body: Any) -> None:
        """One request; raises where the answer shows a fault of the server."""
        client = self.clients.get(id(app)) or TestClient(app, raise_server_exceptions=False)
        self.clients[id(app)] = client
        begun = time.monotonic()
        self.count += 1
        if isinstance(body, dict | list | str | int | float | bool) or body is None:
            answer = client.request(method, path, json=body)
        else:
            answer = client.request(method, path)
        seconds = time.monotonic() - begun
        assert seconds < MAX_SECONDS, f"{seconds:.0f} s for {body!r:.2000}"
        shown = f"{answer.status_code} {answer.text[:500]} for {method} {path} {body!r:.2000}"
        assert answer.status_code < 500, shown
        # A stream has its status before its fault.
        assert '"type":"InternalServerError","param":' not in answer.text, shown
        if answer.status_code >= 400:
            error = json.loads(answer.text)["error"]
            assert isinstance(error["message"], str) and error["message"], shown


@pytest.fixture(scope="module")
def sender() -> Iterator[Sender]:
    before = logging.root.manager.disable
    # Warnings of fields that nobody knows would fill the report.
    logging.disable(logging.WARNING)
    yield Sender()
    logging.disable(before)


def mixed(good: dict[str, Any], made: Any, choice: int) -> dict[str, Any]:
    """`good` with up to four fields of `made`, which `choice` picks."""
    if not isinstance(made, dict):
        return good
    fields = sorted(made, key=str)
    picked = [fields[(choice >> (8 * i)) % len(fields)] for i in range(MOST_FIELDS)] if made else []
    # A model that does not exist would be all that is told.
    return good | {name: made[name] for name in picked[: 1 + choice % 4] if name != "model"}


@pytest.mark.parametrize(
    "is_long", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["some", "more"]
)
@pytest.mark.parametrize("one", OPERATIONS, ids=lambda one: one.label)
def test_no_request_is_the_servers_fault(one: Tried, is_long: bool, sender: Sender) -> None:
    operation, good = one.operation, one.good
    cases = st.one_of(
        operation.as_strategy(),
        operation.as_strategy(generation_mode=GenerationMode.NEGATIVE),
    )

    @hypothesis.seed(SEED)
    @hypothesis.given(case=cases, choices=st.lists(CHOICES, min_size=NUM_MIXED, max_size=NUM_MIXED))
    @settings(
        max_examples=one.num_examples(is_long),
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate, Phase.shrink],
    )
    def send(case: Any, choices: list[int]) -> None:
        path = case.formatted_path
        sender.send(one.app, case.method, path, case.body)
        for choice in choices if good is not None else ():
            sender.send(one.app, case.method, path, mixed(good, case.body, choice))

    send()


def test_there_were_enough(sender: Sender) -> None:
    with_body = [one.operation.path for one in OPERATIONS if one.good is not None]
    assert len(with_body) == len(GOOD) + sum(map(len, GOOD_POOLED.values()))
    assert sender.count >= MIN_CASES
