"""Routes for whoever develops with an engine, with VLLM_SERVER_DEV_MODE=1: stop it, look inside.

They are guarded like all others. Invariant: nothing that may be a secret is shown.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import get_args

from starlette.requests import Request
from starlette.responses import Response

from vllm_lite import __version__, envs
from vllm_lite.engine.client import PauseMode
from vllm_lite.errors import RequestError
from vllm_lite.server.body import json_response, read_json
from vllm_lite.server.context import ServingContext

_SECRET_WORDS = ("KEY", "TOKEN", "SECRET", "PASSWORD")


class DevService:
    """Pause, resume, abort, forget, describe."""

    def __init__(self, context: ServingContext) -> None:
        self._context = context

    async def pause(self, request: Request) -> Response:
        """Begin no new requests; ?mode=abort, wait or keep says what becomes of the others."""
        mode = request.query_params.get("mode", "abort")
        if mode not in get_args(PauseMode):
            raise RequestError.about("mode", f"must be one of {', '.join(get_args(PauseMode))}")
        clear_cache = _flag(request.query_params, "clear_cache", default=True)
        await self._context.client.pause_generation(mode, clear_cache)  # type: ignore[arg-type]
        return json_response({"status": "paused"})

    async def resume(self, request: Request) -> Response:
        """Go on after a pause."""
        await self._context.client.resume_generation()
        return json_response({"status": "resumed"})

    async def is_paused(self, request: Request) -> Response:
        """Report whether new requests wait."""
        return json_response({"is_paused": await self._context.client.is_paused()})

    async def sleep(self, request: Request) -> Response:
        """Pause and forget the cache; ?level=1 gives its memory back, ?level=2 the weights' too."""
        level = request.query_params.get("level", "1")
        mode = request.query_params.get("mode", "abort")
        number = int(level) if level in ("0", "1", "2") else -1
        await self._context.client.sleep(number, mode)  # type: ignore[arg-type]
        return Response()

    async def wake_up(self, request: Request) -> Response:
        """Go on after a sleep; ?tags=kv_cache and ?tags=weights say what is to wake."""
        await self._context.client.wake_up(request.query_params.getlist("tags") or None)
        return Response()

    async def is_sleeping(self, request: Request) -> Response:
        """Report whether memory is given back."""
        return json_response({"is_sleeping": await self._context.client.is_sleeping()})

    async def abort_requests(self, request: Request) -> Response:
        """End the requests of "request_ids", or all that this process serves."""
        body = await read_json(request)
        ids = body.get("request_ids")
        if ids is not None and not (
            isinstance(ids, list) and all(isinstance(one, str) for one in ids)
        ):
            raise RequestError.about("request_ids", "must be a list of strings")
        return json_response(
            {"status": "aborted", "aborted": await self._context.generations.abort(ids)}
        )

    async def reset_prefix_cache(self, request: Request) -> Response:
        """Forget cached prefixes; false while requests hold blocks."""
        return json_response({"success": await self._context.client.reset_prefix_cache()})

    async def server_info(self, request: Request) -> Response:
        """Describe configuration and machine; ?config_format=text or json."""
        shape = request.query_params.get("config_format", "text")
        if shape not in ("text", "json"):
            raise RequestError.about("config_format", "must be text or json")
        config = self._context.client.config
        return json_response(
            {
                "vllm_config": str(config) if shape == "text" else _plain(config),
                "vllm_env": _environment(),
                "system_env": {
                    "vllm_lite": __version__,
                    "python": sys.version,
                    "platform": platform.platform(),
                    "machine": platform.machine(),
                    "cpu_count": os.cpu_count(),
                },
            }
        )


def _plain(value: object) -> object:
    """A configuration as JSON can hold it, without the fields that a repr leaves out: secrets."""
    if is_dataclass(value):
        return {f.name: _plain(getattr(value, f.name)) for f in fields(value) if f.repr}
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item) for item in value]
    return value if isinstance(value, str | int | float | bool | None) else str(value)


def _environment() -> dict[str, object]:
    return {
        name: getattr(envs, name)
        for name in dir(envs)
        if name.startswith("VLLM_") and not any(word in name for word in _SECRET_WORDS)
    }


def _flag(query: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = query.get(name, str(default)).lower()
    if text not in ("true", "false", "1", "0"):
        raise RequestError.about(name, "must be true or false")
    return text in ("true", "1")
