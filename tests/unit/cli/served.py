"""A real port of the loopback for an application, and the commands that talk to it."""

from __future__ import annotations

import asyncio
import io
import json
import threading
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from typing import Literal

import pytest
import uvicorn
from fastapi import FastAPI
from starlette.responses import StreamingResponse

from tests.server.fake_client import FakeEngineClient
from vllm_lite.cli.main import main


@contextmanager
def served(app: FastAPI) -> Iterator[str]:
    """Serve `app` from a thread; gives its address, as --url takes it."""
    settings = uvicorn.Config(app, host="127.0.0.1", port=0, log_level="critical", lifespan="off")
    server = uvicorn.Server(settings)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.005)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        server.should_exit = True
        server.force_exit = True
        thread.join(10)


def scripted(*events: str) -> FastAPI:
    """Streams those events, whatever is asked; the event "die" cuts the connection."""
    app = FastAPI()

    @app.get("/v1/models")
    async def models() -> dict[str, object]:
        return {"object": "list", "data": [{"id": "script", "object": "model"}]}

    @app.post("/v1/chat/completions")
    async def chat() -> StreamingResponse:
        async def lines() -> AsyncIterator[str]:
            for event in events:
                if event == "die":
                    raise ConnectionResetError
                yield f"data: {event}\n\n"
                await asyncio.sleep(0)

        return StreamingResponse(lines(), media_type="text/event-stream")

    return app


def delta(finish: str | None = None, **parts: str) -> str:
    """One event of a chat stream."""
    choice = {"index": 0, "delta": parts, "finish_reason": finish}
    return json.dumps({"id": "1", "object": "chat.completion.chunk", "choices": [choice]})


class HoldAfter(asyncio.Event):
    """A gate of FakeEngineClient that lets a number of tokens through, then none."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self._count = count

    async def wait(self) -> Literal[True]:
        self._count -= 1
        if self._count >= 0:
            return True
        return await super().wait()


def prompts(engine: FakeEngineClient) -> list[str]:
    """The texts that reached the engine, whether as text or as ids."""
    seen = [
        prompt["prompt_token_ids"] if isinstance(prompt, dict) else prompt
        for prompt, _, _ in engine.seen
    ]
    return [one if isinstance(one, str) else engine.tokenizer.decode(one) for one in seen]


def piped(monkeypatch: pytest.MonkeyPatch, text: str, words: Sequence[str]) -> int:
    """The command's exit code with `text` coming through a pipe."""
    monkeypatch.setattr("sys.stdin", io.StringIO(text))
    return main(words)
