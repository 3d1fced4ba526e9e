"""Reading a text as the server does, cut in any way."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from vllm_lite.parsers.events import ParsedMessage, collect
from vllm_lite.parsers.pipeline import OutputParser, OutputParserConfig
from vllm_lite.parsers.tools.spec import ToolSpec

TOOLS = (
    ToolSpec(
        "get_weather",
        {
            "type": "object",
            "properties": {
                "city": {"type": "string"},
                "days": {"type": "integer"},
                "wind": {"type": "number"},
                "now": {"type": "boolean"},
                "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
                "opts": {"$ref": "#/$defs/opts"},
                "tags": {"type": "array", "items": {"type": "string"}},
            },
            "$defs": {
                "opts": {
                    "type": "object",
                    "properties": {
                        "deep": {"type": "array", "items": {"type": "integer"}},
                        "text": {"type": "string"},
                    },
                }
            },
        },
    ),
    ToolSpec("ping", {}),
)


def plain_id(style: str, name: str, index: int) -> str:
    return f"{style or 'id'}-{index}"


def read(
    text: str, cuts: Iterable[int] = (), *, is_cut: bool = True, **config: Any
) -> ParsedMessage:
    """The message of `text`, fed in the pieces that `cuts` make, cut off or ended by the model."""
    config.setdefault("tools", TOOLS)
    parser = OutputParser(OutputParserConfig(new_id=plain_id, **config))
    events = []
    begin = 0
    for end in [*cuts, len(text)]:
        events += parser.feed(text[begin:end])
        begin = end
    return collect(events + parser.finish(is_cut=is_cut))
