"""A request's tools and tool_choice, checked, as parsers and constraints take them.

Knows no parser's format. Invariant: a NamedTool that comes out of here is one of the tools.
"""

from __future__ import annotations

from typing import Any

from vllm_lite.errors import RequestError
from vllm_lite.parsers.tools.spec import NamedTool, ToolChoice, ToolSpec

MAX_TOOL_NAME = 256
_CHOICES = ("none", "auto", "required")


def tool_specs(tools: list[dict[str, Any]] | None) -> tuple[ToolSpec, ...]:
    """The functions that `tools` describe; raises RequestError that names the tool at fault."""
    return tuple(_spec(f"tools.{index}", tool) for index, tool in enumerate(tools or ()))


def _spec(path: str, tool: dict[str, object]) -> ToolSpec:
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


def allowed_tools(
    choice: str | dict[str, object] | None, tools: tuple[ToolSpec, ...]
) -> tuple[tuple[ToolSpec, ...], str | dict[str, object] | None]:
    """The tools that may be called and the choice among them, where `choice` narrows them.

    The prompt shows all tools, so that it stays the same. Raises RequestError.
    """
    if not isinstance(choice, dict) or choice.get("type") != "allowed_tools":
        return tools, choice
    given = choice.get("allowed_tools")
    mode = given.get("mode") if isinstance(given, dict) else None
    listed = given.get("tools") if isinstance(given, dict) else None
    if mode not in ("auto", "required") or not isinstance(listed, list) or not listed:
        raise RequestError(
            "tool_choice.allowed_tools needs a mode, auto or required, and a list of tools",
            "tool_choice",
        )
    known = {tool.name: tool for tool in tools}
    chosen: dict[str, ToolSpec] = {}
    for name in map(_name_of, listed):
        if not isinstance(name, str) or name not in known:
            raise RequestError(
                f"tool_choice allows {name!r:.80}, which is not one of the tools", "tool_choice"
            )
        chosen[name] = known[name]
    return tuple(chosen.values()), mode


def _name_of(choice: object) -> object:
    function = choice.get("function") if isinstance(choice, dict) else None
    return function.get("name") if isinstance(function, dict) else None


def tool_choice_of(
    choice: str | dict[str, object] | None, tools: tuple[ToolSpec, ...]
) -> ToolChoice:
    """`choice` as given by a client; without one, "auto" where there are tools.

    Raises RequestError for a choice that is none, or that the tools do not allow.
    """
    if choice is None:
        return "auto" if tools else "none"
    if isinstance(choice, str) and choice in _CHOICES:
        if choice != "none" and not tools:
            raise RequestError(f"tool_choice {choice} needs tools", "tool_choice")
        return choice  # type: ignore[return-value]
    name = _name_of(choice)
    if not isinstance(name, str):
        raise RequestError(
            'tool_choice must be none, auto, required, {"type": "function", "function": '
            '{"name": ...}} or of type allowed_tools',
            "tool_choice",
        )
    if all(tool.name != name for tool in tools):
        raise RequestError(
            f"tool_choice names {name!r:.80}, which is not one of the tools", "tool_choice"
        )
    return NamedTool(name)
