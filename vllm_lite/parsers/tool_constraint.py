"""The constraint that makes a model write calls of a request's tools, arguments and all.

Builds data for a grammar engine; knows none. Invariant: what the constraint allows, the parser
chosen for the same request reads back as calls whose arguments follow their tools' schemas.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from vllm_lite.parsers.tool_spec import NamedTool, ToolChoice, ToolSpec, is_forced
from vllm_lite.structured_outputs_params import StructuredOutputsParams

# Keywords whose value maps names to schemas, and those whose value is data.
_SCHEMA_MAPS = frozenset(
    ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
)
_DATA = frozenset(("const", "enum", "default", "examples"))


def tool_constraint(
    tool_parser: str | None,
    tools: Sequence[ToolSpec],
    tool_choice: ToolChoice,
    *,
    parallel_tool_calls: bool = True,
) -> StructuredOutputsParams | None:
    """What the answer must be for `tool_choice`; None where it is free.

    A forced choice always carries the schemas of the arguments. The tool of a named choice must
    be one of `tools`.
    """
    if not is_forced(tool_choice):
        return None
    if isinstance(tool_choice, NamedTool):
        chosen = next(tool for tool in tools if tool.name == tool_choice.name)
        return StructuredOutputsParams(json=argument_schema(chosen))
    return StructuredOutputsParams(json=_array_schema(tools, parallel_tool_calls))


def has_own_envelope(tool_parser: str | None) -> bool:
    """Whether a forced call is written in the model's own format, not as plain JSON."""
    return False


def argument_schema(tool: ToolSpec) -> dict[str, Any]:
    """The schema of a tool's arguments, which are always an object."""
    schema = dict(tool.parameters)
    if "$ref" not in schema:
        schema.setdefault("type", "object")
    return schema


def _array_schema(tools: Sequence[ToolSpec], parallel: bool) -> dict[str, Any]:
    calls = []
    schemas = {}
    for number, tool in enumerate(tools):
        root = f"#/$defs/tool_{number}"
        schemas[f"tool_{number}"] = moved(argument_schema(tool), root)
        calls.append(
            {
                "type": "object",
                "properties": {"name": {"const": tool.name}, "parameters": {"$ref": root}},
                "required": ["name", "parameters"],
                "additionalProperties": False,
            }
        )
    array: dict[str, Any] = {"type": "array", "minItems": 1, "items": {"anyOf": calls}}
    if not parallel:
        array["maxItems"] = 1
    return array | {"$defs": schemas}


def moved(schema: Any, root: str) -> Any:
    """`schema`, a whole document, as a part that lies at `root` of another: references follow."""
    if isinstance(schema, list):
        return [moved(item, root) for item in schema]
    if not isinstance(schema, Mapping):
        return schema
    found: dict[str, Any] = {}
    for key, value in schema.items():
        if key == "$ref" and isinstance(value, str) and value.startswith("#"):
            found[key] = root + value[1:]
        elif key in _SCHEMA_MAPS and isinstance(value, Mapping):
            found[key] = {name: moved(part, root) for name, part in value.items()}
        else:
            found[key] = value if key in _DATA else moved(value, root)
    return found
