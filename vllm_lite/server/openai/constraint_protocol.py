"""response_format and structured_outputs, as the one constraint that they put on a text.

Knows no grammar. Invariant: an error names the field that the client wrote.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from vllm_lite.errors import RequestError
from vllm_lite.sampling_params import StructuredOutputsParams
from vllm_lite.server.body import warn_unknown

_OPTIONS = frozenset(StructuredOutputsParams.__struct_fields__)
_FORMATS = ("text", "json_object", "json_schema", "structural_tag")


@contextmanager
def blamed_on(field: str) -> Iterator[None]:
    """Let a refused constraint name `field`, from which it was made."""
    try:
        yield
    except RequestError as error:
        if error.param is None or error.param.split(".")[0] != "structured_outputs":
            raise
        message = error.message.replace(error.param, field)
        raise RequestError(message, field) from None


def constraint_of(
    response_format: dict[str, object] | None, structured_outputs: dict[str, Any] | None
) -> StructuredOutputsParams | None:
    """The constraint on the text; None where it is free. Raises RequestError."""
    wanted = _of_format(response_format)
    if not structured_outputs:
        return wanted
    if wanted is not None:
        raise RequestError(
            "response_format and structured_outputs cannot both constrain the text; drop one",
            "response_format",
        )
    warn_unknown(structured_outputs.keys() - _OPTIONS)
    given = {k: v for k, v in structured_outputs.items() if k in _OPTIONS and v is not None}
    return StructuredOutputsParams(**given)


def from_the_start(constraint: StructuredOutputsParams | None) -> StructuredOutputsParams | None:
    """The same constraint, but of a text's reasoning too."""
    if constraint is None:
        return None
    return msgspec.structs.replace(constraint, enable_in_reasoning=True)


def _of_format(response_format: dict[str, object] | None) -> StructuredOutputsParams | None:
    kind = "text" if response_format is None else response_format.get("type")
    if response_format is None or kind == "text":
        return None
    if kind == "json_object":
        return StructuredOutputsParams(json_object=True)
    if kind == "structural_tag":
        with blamed_on("response_format"):
            return StructuredOutputsParams(structural_tag=json.dumps(response_format))
    if kind != "json_schema":
        raise RequestError(
            f"response_format.type must be one of {', '.join(_FORMATS)}, got {kind!r:.40}",
            "response_format.type",
        )
    named = response_format.get("json_schema")
    schema = named.get("schema") if isinstance(named, dict) else None
    if not isinstance(schema, dict):
        raise RequestError(
            "response_format.json_schema must be an object with a name and a schema",
            "response_format.json_schema",
        )
    with blamed_on("response_format.json_schema.schema"):
        return StructuredOutputsParams(json=schema)
