"""The modules that one plain chat completion runs through before the engine core has it.

    python benchmarks/chat_path.py MODEL       any checkpoint with a chat template

Lists, in order of their first call, the modules of vllm_lite whose functions run in the request's
own tasks until the message with its sequence is given to the engine core's stream. Numbered are
those called after the body was received; routing and middleware come before it. The core runs in
this process, and an earlier request starts what is started once.
"""

from __future__ import annotations

import argparse
import asyncio
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
from vllm_lite.config.engine_args import EngineArgs
from vllm_lite.config.server import ServerConfig
from vllm_lite.engine.front.async_llm import AsyncLLM
from vllm_lite.engine.link.stream import MessageStream
from vllm_lite.server.app import build_app

ROOT = Path(vllm_lite.__file__).parent
_SEND = MessageStream.send.__code__
# The code objects called so far, of the request that this task serves.
_calls: ContextVar[dict[CodeType, None] | None] = ContextVar("calls", default=None)


class ChatPath:
    """ASGI middleware that records the modules called until a request is queued."""

    def __init__(self, app: FastAPI) -> None:
        self._app = app
        self._before: dict[CodeType, None] = {}
        self._after: dict[CodeType, None] = {}
        self._is_sent = False

    @property
    def before_body(self) -> list[str]:
        """Modules called before the body was received."""
        return _modules(self._before)

    @property
    def after_body(self) -> list[str]:
        """Modules called from then on, until the message was sent."""
        return _modules(self._after)

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


def _modules(calls: dict[CodeType, None]) -> list[str]:
    """Dotted names below vllm_lite, in order of their first call."""
    paths = (Path(code.co_filename) for code in calls)
    names = (path.relative_to(ROOT) for path in paths if path.is_relative_to(ROOT))
    return list(dict.fromkeys(".".join(name.with_suffix("").parts) for name in names))


async def path_of_chat(app: FastAPI) -> ChatPath:
    """The path of a plain chat completion."""
    await _chat(app)
    path = ChatPath(app)
    await _chat(path)
    return path


async def _chat(app: Any) -> None:
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://server") as session:
        response = await session.post("/v1/chat/completions", json=body)
    response.raise_for_status()


async def _main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model")
    options = parser.parse_args()
    config = EngineArgs(model=options.model).create_engine_config("server")
    engine = AsyncLLM.from_vllm_config(config, disable_frontend_multiprocessing=True)
    try:
        path = await path_of_chat(build_app(engine, ServerConfig()))
    finally:
        await engine.shutdown()
    for name in path.before_body:
        print(f"  - {name}")
    for number, name in enumerate(path.after_body, 1):
        print(f"{number:3} {name}")


if __name__ == "__main__":
    asyncio.run(_main())
