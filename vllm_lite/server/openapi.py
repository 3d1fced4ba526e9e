"""The rows of the route table, and the OpenAPI document made of them.

Invariant: every reference in the document resolves.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from vllm_lite import __version__
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


def openapi_document(routes: Sequence[Route]) -> dict[str, Any]:
    """The document of those routes that it lists."""
    # Imported here: a server is asked for its document rarely.
    from pydantic.json_schema import models_json_schema

    listed = [one for one in routes if one.is_public]
    models = [(model, "validation") for one in listed for model in one.bodies]
    references, found = models_json_schema(
        list(dict.fromkeys(models)),  # type: ignore[arg-type]
        ref_template=_REFERENCE,
    )
    paths: dict[str, dict[str, Any]] = {}
    for one in listed:
        known = [references[model, "validation"] for model in one.bodies]
        operations = paths.setdefault(_plain(one.path), {})
        operations[one.method.lower()] = _operation(one, known)
    schemas = {**found.get("$defs", {}), "ErrorResponse": _ERROR}
    return {
        "openapi": "3.1.0",
        "info": {"title": "vllm-lite", "version": __version__},
        "paths": paths,
        "components": {"schemas": schemas},
    }


def _operation(route: Route, bodies: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The route with its path's parameters, the body, the reply and the error reply."""
    path, method = _plain(route.path), route.method.lower()
    operation: dict[str, Any] = {
        "summary": route.endpoint.__doc__,
        "operationId": re.sub(r"\W", "_", f"{method}{path}"),
    }
    names = _PARAMETER.findall(path)
    if names:
        operation["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
            for name in names
        ]
    if bodies:
        schema = bodies[0] if len(bodies) == 1 else {"anyOf": list(bodies)}
        operation["requestBody"] = {
            "content": {route.body_media: {"schema": schema}},
            "required": True,
        }
    reply: dict[str, Any] = {"description": "Successful Response"}
    if route.media:
        reply["content"] = {kind: {"schema": _REPLIES.get(kind, {})} for kind in route.media}
    error = {"schema": {"$ref": _REFERENCE.format(model="ErrorResponse")}}
    failure = {"description": "What went wrong.", "content": {"application/json": error}}
    operation["responses"] = {"200": reply, "default": failure}
    return operation


def _plain(path: str) -> str:
    """As documents write it: without the converter that a parameter may name."""
    return re.sub(r"{(\w+):\w+}", r"{\1}", path)
