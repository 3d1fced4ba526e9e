"""The OpenAPI document: routes, the bodies that endpoints read by themselves, and the one error.

Knows a route by its method, path and body model. Invariant: every reference in it resolves.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

_REFERENCE = "#/components/schemas/{model}"
_PARAMETER = re.compile(r"{(\w+)}")
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


def openapi_document(
    app: FastAPI, bodies: Sequence[tuple[str, str, type[BaseModel]]]
) -> dict[str, Any]:
    """The document of `app`; `bodies` are method, path and model of the routes that have one."""
    document = get_openapi(title=app.title, version=app.version, routes=app.routes)
    models = [(model, "validation") for _, _, model in bodies]
    references, found = models_json_schema(
        list(dict.fromkeys(models)),  # type: ignore[arg-type]
        ref_template=_REFERENCE,
    )
    schemas = document.setdefault("components", {}).setdefault("schemas", {})
    schemas |= {**found.get("$defs", {}), "ErrorResponse": _ERROR}
    for method, path, model in bodies:
        document["paths"][_plain(path)][method.lower()]["requestBody"] = {
            "content": {"application/json": {"schema": references[model, "validation"]}},
            "required": True,
        }
    for path, operations in document["paths"].items():
        for operation in operations.values():
            _complete(path, operation)
    return document


def _complete(path: str, operation: dict[str, Any]) -> None:
    """Add the parameters that a path names, and how every route tells of a failure."""
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
