"""Which parsers read the answers of one server: the names that its options give, checked.

Knows no format. Invariant: a name that comes out of here is registered.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from vllm_lite.config.server import ReplyConfig
from vllm_lite.config.vllm import VllmConfig
from vllm_lite.parsers import registry


@dataclass(frozen=True, slots=True)
class ParserNames:
    """A tool parser's and a reasoning parser's name; None is without."""

    tool: str | None
    reasoning: str | None


@cache
def _load_once(path: str) -> None:
    registry.load_plugin(path)


def choose_parsers(config: VllmConfig, reply_config: ReplyConfig) -> ParserNames:
    """Load the plugins and look the names up; raises UsageError for one that is not known."""
    structured = config.structured_outputs
    for plugin in (reply_config.tool_parser_plugin, structured.reasoning_parser_plugin):
        if plugin:
            _load_once(plugin)
    tool = reply_config.tool_call_parser or None
    reasoning = structured.reasoning_parser or None
    if tool is not None:
        registry.tool_format(tool)
    if reasoning is not None:
        registry.reasoning_format(reasoning)
    return ParserNames(tool, reasoning)
