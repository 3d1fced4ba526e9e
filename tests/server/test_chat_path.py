"""The modules that one plain chat completion runs through before the engine core has it.

Those whose functions run in the request's own tasks, once its body was received, until the message
with its sequence is given to the engine core's stream.
"""

from __future__ import annotations

import gc
import sys
from contextvars import ContextVar
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import httpx
from fastapi import FastAPI
from starlette.types import Message, Receive, Scope, Send

import vllm_lite
from tests.server.fake_client import TEMPLATE
from tests.unit.engine.engines import async_engine
from vllm_lite.config.server import ServerConfig
from vllm_lite.engine.link.stream import MessageStream
from vllm_lite.server.app import build_app

ROOT = Path(vllm_lite.__file__).parent
MOST_BEFORE_ENGINE = 9
MOST_MODULES = 14
_SEND = MessageStream.send.__code__
# The code objects called so far, of the request that this task serves.
_calls: ContextVar[dict[CodeType, None] | None] = ContextVar("calls", default=None)


class ChatPath:
    """ASGI middleware that records the modules called until a request is queued."""

    def __init__(self, app: FastAPI) -> None:
        self._app = app
        # Until the body was received, and from then on.
        self._before: dict[CodeType, None] = {}
        self._after: dict[CodeType, None] = {}
        self._is_sent = False

    @property
    def modules(self) -> list[str]:
        """Dotted names below vllm_lite that the body passed until it was sent, in order."""
        paths = (Path(code.co_filename) for code in self._after)
        names = (path.relative_to(ROOT) for path in paths if path.is_relative_to(ROOT))
        return list(dict.fromkeys(".".join(name.with_suffix("").parts) for name in names))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve the request, profiled."""

        async def received() -> Message:
            message = await receive()
            _calls.set(self._after)
            return message

        _calls.set(self._before)
        # Finalizers of older garbage would run among the calls.
        gc.collect()
        gc.freeze()
        previous = sys.getprofile()
        sys.setprofile(self._profile)
        try:
            await self._app(scope, received, send)
        finally:
            sys.setprofile(previous)
            gc.unfreeze()

    def _profile(self, frame: FrameType, event: str, argument: object) -> None:
        calls = _calls.get()
        if self._is_sent or calls is None:
            return
        if frame.f_code is _SEND:
            self._is_sent = True
            return
        # A coroutine that resumes counts as called again: those before the body wait for the rest.
        if event == "call" and (calls is self._before or frame.f_code not in self._before):
            calls[frame.f_code] = None


async def chat(app: Any) -> None:
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://server") as session:
        response = await session.post("/v1/chat/completions", json=body)
    response.raise_for_status()


async def test_plain_chat_passes_few_modules_before_the_queue() -> None:
    async with async_engine() as (engine, _):
        app = build_app(engine, ServerConfig(chat_template=TEMPLATE))
        await chat(app)  # starts what is started once
        path = ChatPath(app)
        await chat(path)
        modules = path.modules
    assert modules[0] == "server.body"
    assert "engine.link.channel" in modules
    assert len(modules) <= MOST_MODULES, " ".join(modules)
    before_engine = modules[: modules.index("engine.front.async_llm")]
    assert len(before_engine) <= MOST_BEFORE_ENGINE, " ".join(before_engine)
