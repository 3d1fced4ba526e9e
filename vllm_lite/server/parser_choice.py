"""The parsers of one server: the names that its options give, checked.

Knows no format. Invariant: a name that comes out of here is registered.
"""

from __future__ import annotations

from dataclasses import dataclass

from vllm_lite.config.server import ReplyConfig
from vllm_lite.config.vllm import VllmConfig
from vllm_lite.parsers.binding import bind_parsers


@dataclass(frozen=True, slots=True)
class ParserNames:
    """The names of a tool parser and a reasoning parser; None for no parser."""

    tool: str | None
    reasoning: str | None


def choose_parsers(config: VllmConfig, reply_config: ReplyConfig) -> ParserNames:
    """Load the parsers that the options name; raises UsageError."""
    tool = reply_config.tool_call_parser or None
    bind_parsers(config, tool, reply_config.tool_parser_plugin or None)
    return ParserNames(tool, config.structured_outputs.reasoning_parser or None)


def check_reply_options(config: VllmConfig, reply_config: ReplyConfig) -> None:
    """Raise UsageError for unusable parsers or templates, before a model loads."""
    choose_parsers(config, reply_config)
    if reply_config.chat_template is not None:
        # Imported here: without a template the engine core starts before Jinja is imported.
        from vllm_lite.tokenizer.chat_template import load_chat_template

        load_chat_template(reply_config.chat_template)
