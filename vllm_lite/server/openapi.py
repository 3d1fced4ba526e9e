"""The OpenAPI document: routes, the bodies that endpoints read by themselves, and the one error.

Knows a route by what is Described of it. Invariant: every reference in it resolves.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

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


class Described(NamedTuple):
    """An operation's request and reply types."""

    method: str
    path: str
    # Alternative models of the body; empty without one.
    bodies: Sequence[type[BaseModel]]
    # Types of what a successful reply holds; empty where that is nothing.
    media: Sequence[str]
    body_media: str = "application/json"


def openapi_document(app: FastAPI, operations: Sequence[Described]) -> dict[str, Any]:
    document = get_openapi(title=app.title, version=app.version, routes=app.routes)
    models = [(model, "validation") for one in operations for model in one.bodies]
    references, found = models_json_schema(
        list(dict.fromkeys(models)),  # type: ignore[arg-type]
        ref_template=_REFERENCE,
    )
    schemas = document.setdefault("components", {}).setdefault("schemas", {})
    schemas |= {**found.get("$defs", {}), "ErrorResponse": _ERROR}
    for one in operations:
        path = _plain(one.path)
        operation = document["paths"][path][one.method.lower()]
        known = [references[model, "validation"] for model in one.bodies]
        _complete(operation, path, known, one)
    return document


def _complete(
    operation: dict[str, Any],
    path: str,
    bodies: Sequence[dict[str, Any]],
    described: Described,
) -> None:
    """Add a path's parameters, the body, the reply and the error reply."""
    if bodies:
        schema = bodies[0] if len(bodies) == 1 else {"anyOf": list(bodies)}
        operation["requestBody"] = {
            "content": {described.body_media: {"schema": schema}},
            "required": True,
        }
    reply = operation["responses"]["200"]
    reply.pop("content", None)
    if described.media:
        kinds = described.media
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
