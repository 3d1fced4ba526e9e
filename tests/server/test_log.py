"""A client's mistake is logged as INFO at most, never as an error."""

from __future__ import annotations

import json
import logging

import pytest

from tests.server.fake_client import FakeEngineClient
from tests.server.refused import REFUSED
from tests.server.running import running
from vllm_lite.log import JsonFormatter


class Records(logging.Handler):
    """Keeps what is logged."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.found.append(record)


@pytest.mark.parametrize(("status", "raw"), REFUSED.values(), ids=REFUSED.keys())
async def test_a_refusal_is_a_line_of_info_at_most(status: int, raw: bytes) -> None:
    records = Records()
    async with running(FakeEngineClient()) as server:
        # Only now the server has set its log up.
        loggers = [logging.getLogger(name) for name in ("vllm_lite", "uvicorn", "uvicorn.access")]
        for logger in loggers:
            logger.addHandler(records)
        try:
            answer = await server.send(raw)
        finally:
            for logger in loggers:
                logger.removeHandler(records)
    assert answer.startswith(b"HTTP/1.1 %d " % status), answer[:300]
    shown = [f"{one.levelname} {one.name} {one.getMessage()}" for one in records.found]
    assert len(shown) <= 1, shown
    assert all(one.levelno == logging.INFO and not one.exc_info for one in records.found), shown


async def test_a_request_s_line_has_the_id_that_its_reply_has() -> None:
    records = Records()
    async with running(FakeEngineClient()) as server:
        logger = logging.getLogger("uvicorn.access")
        logger.addHandler(records)
        try:
            answer = await server.http.post("/v1/completions", json={"prompt": "a"})
            streamed = {"prompt": "a", "stream": True, "request_id": "mine"}
            await server.http.post("/v1/completions", json=streamed)
            await server.http.get("/v1/models")
        finally:
            logger.removeHandler(records)
    ids = [json.loads(JsonFormatter().format(one)).get("request_id") for one in records.found]
    assert ids == [answer.json()["id"], "cmpl-mine", None]


async def test_errors_of_the_server_itself_have_their_traceback() -> None:
    records = Records()
    client = FakeEngineClient()
    client.failure = ZeroDivisionError("our fault")
    async with running(client) as server:
        logging.getLogger("vllm_lite").addHandler(records)
        try:
            answer = await server.http.post("/v1/completions", json={"prompt": "a"})
        finally:
            logging.getLogger("vllm_lite").removeHandler(records)
    assert answer.status_code == 500
    (found,) = [one for one in records.found if one.levelno >= logging.WARNING]
    assert found.exc_info is not None and found.exc_info[0] is ZeroDivisionError
