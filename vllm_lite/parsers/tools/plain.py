"""Calls without any format of a model: the JSON that a constraint makes it write.

For a required call an array of {"name", "parameters"}; for one named tool its arguments alone.
"""

from __future__ import annotations

from dataclasses import dataclass

from vllm_lite.parsers.literals import JSON, read_value
from vllm_lite.parsers.source import Reading
from vllm_lite.parsers.tools.json_calls import JsonTools
from vllm_lite.parsers.tools.reader import CallWriter, ToolFormat
from vllm_lite.parsers.tools.spec import NamedTool, ToolChoice


@dataclass(frozen=True)
class BareArguments:
    """The first object of the text is the arguments of `name`."""

    name: str
    id_style: str = ""
    openers: tuple[str, ...] = ("{",)
    wrappers: tuple[str, ...] = ()

    def read_calls(self, opener: str, calls: CallWriter) -> Reading[None]:
        """See ToolFormat."""
        calls.begin(self.name)
        yield from read_value(calls.source, JSON, calls.put, opener)
        calls.end()


def plain_format(choice: ToolChoice, id_style: str) -> ToolFormat:
    """How the answer of a forced call is read; `id_style` is that of the model's own format."""
    if isinstance(choice, NamedTool):
        return BareArguments(choice.name, id_style)
    return JsonTools(openers=("[",), bare=("[",), id_style=id_style)
