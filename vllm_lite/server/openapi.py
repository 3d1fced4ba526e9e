"""The rows of the route table, and the OpenAPI document made of them.

Invariant: every reference in the document resolves.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from starlette.requests import Request
from starlette.responses import Response

from vllm_lite.server.errors import Failure

Endpoint = Callable[[Request], Awaitable[Response]]

_REFERENCE = "#/components/schemas/{model}"
_PARAMETER = re.compile(r"{(\w+)}")
_REPLIES = {
    "text/event-stream": {"type": "string"},
    "text/html": {"type": "string"},
    "text/plain": {"type": "string"},
}
_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": "integer"},
            },
        }
    },
}


@dataclass(frozen=True, slots=True)
class Route:
    """One row of the table. Only an open route is served without a key."""

    method: str
    path: str
    endpoint: Endpoint
    # The model of the body, or several alternatives.
    body: type[BaseModel] | tuple[type[BaseModel], ...] = ()
    # Of what a successful reply holds.
    media: tuple[str, ...] = ("application/json",)
    is_open: bool = False
    # Whether the OpenAPI document lists it.
    is_public: bool = True
    # Its replies carry a load report on request.
    reports_load: bool = False
    # Makes the response to a failure.
    refuse: Callable[[Failure], Response] = Failure.response
    body_media: str = "application/json"

    @property
    def bodies(self) -> tuple[type[BaseModel], ...]:
        return self.body if isinstance(self.body, tuple) else (self.body,)


def openapi_document(app: FastAPI, routes: Sequence[Route]) -> dict[str, Any]:
    described = [_described(one) for one in routes]
    document = get_openapi(title=app.title, version=app.version, routes=described)
    models = [(model, "validation") for one in routes for model in one.bodies]
    references, found = models_json_schema(
        list(dict.fromkeys(models)),  # type: ignore[arg-type]
        ref_template=_REFERENCE,
    )
    schemas = document.setdefault("components", {}).setdefault("schemas", {})
    schemas |= {**found.get("$defs", {}), "ErrorResponse": _ERROR}
    for one in routes:
        path = _plain(one.path)
        operation = document["paths"][path][one.method.lower()]
        known = [references[model, "validation"] for model in one.bodies]
        _complete(operation, path, known, one)
    return document


def _described(route: Route) -> APIRoute:
    """The route as FastAPI describes it."""

    async def endpoint(request: Request) -> None: ...

    return APIRoute(
        route.path,
        endpoint,
        name=route.path.strip("/").replace("/", "_") or "root",
        methods=[route.method],
        response_model=None,
        summary=route.endpoint.__doc__,
    )


def _complete(
    operation: dict[str, Any], path: str, bodies: Sequence[dict[str, Any]], route: Route
) -> None:
    """Add a path's parameters, the body, the reply and the error reply."""
    if bodies:
        schema = bodies[0] if len(bodies) == 1 else {"anyOf": list(bodies)}
        operation["requestBody"] = {
            "content": {route.body_media: {"schema": schema}},
            "required": True,
        }
    reply = operation["responses"]["200"]
    reply.pop("content", None)
    if route.media:
        kinds = route.media
        reply["content"] = {kind: {"schema": _REPLIES.get(kind, {})} for kind in kinds}
    names = _PARAMETER.findall(path)
    if names:
        operation["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
            for name in names
        ]
    error = {"schema": {"$ref": _REFERENCE.format(model="ErrorResponse")}}
    operation["responses"]["default"] = {
        "description": "What went wrong.",
        "content": {"application/json": error},
    }


def _plain(path: str) -> str:
    """As documents write it: without the converter that a parameter may name."""
    return re.sub(r"{(\w+):\w+}", r"{\1}", path)
