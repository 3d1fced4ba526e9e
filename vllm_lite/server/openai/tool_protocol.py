"""A request's tools and tool_choice, checked, as parsers and constraints take them.

Knows no parser's format. Invariant: a NamedTool that comes out of here is one of the tools.
"""

from __future__ import annotations

from typing import Any

from vllm_lite.errors import RequestError
from vllm_lite.parsers.tool_spec import NamedTool, ToolChoice, ToolSpec

MAX_TOOL_NAME = 256
_CHOICES = ("none", "auto", "required")


def tool_specs(tools: list[dict[str, Any]] | None) -> tuple[ToolSpec, ...]:
    """The functions that `tools` describe; raises RequestError that names the tool at fault."""
    return tuple(_spec(f"tools.{index}", tool) for index, tool in enumerate(tools or ()))


def _spec(path: str, tool: dict[str, Any]) -> ToolSpec:
    if tool.get("type", "function") != "function":
        kind = tool["type"]
        raise RequestError(f"{path}.type {kind!r:.40} is not supported; use function", path)
    function = tool.get("function")
    if not isinstance(function, dict):
        raise RequestError(f"{path}.function must be an object with a name", f"{path}.function")
    name = function.get("name")
    if not isinstance(name, str) or not 0 < len(name) <= MAX_TOOL_NAME:
        raise RequestError(
            f"{path}.function.name must be a string of 1 to {MAX_TOOL_NAME} characters",
            f"{path}.function.name",
        )
    parameters = function.get("parameters")
    if parameters is not None and not isinstance(parameters, dict):
        raise RequestError(
            f"{path}.function.parameters must be a JSON schema", f"{path}.function.parameters"
        )
    strict = function.get("strict")
    if strict not in (None, True, False):
        raise RequestError(f"{path}.function.strict must be true or false", f"{path}.function")
    return ToolSpec(name, parameters or {}, strict)


def tool_choice_of(choice: str | dict[str, Any] | None, tools: tuple[ToolSpec, ...]) -> ToolChoice:
    """`choice` as given by a client; without one, "auto" where there are tools.

    Raises RequestError for a choice that is none, or that the tools do not allow.
    """
    if choice is None:
        return "auto" if tools else "none"
    if isinstance(choice, str) and choice in _CHOICES:
        if choice == "required" and not tools:
            raise RequestError("tool_choice required needs tools", "tool_choice")
        return choice if tools else "none"  # type: ignore[return-value]
    function = choice.get("function") if isinstance(choice, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str):
        raise RequestError(
            'tool_choice must be none, auto, required or {"type": "function", "function": '
            '{"name": ...}}',
            "tool_choice",
        )
    if all(tool.name != name for tool in tools):
        raise RequestError(
            f"tool_choice names {name!r:.80}, which is not one of the tools", "tool_choice"
        )
    return NamedTool(name)
