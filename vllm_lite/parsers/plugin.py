"""The names that a plugin needs to add parsers: two functions to register them, and the formats.

Everything here stays as it is named; the modules behind it may move.
"""

from vllm_lite.parsers.literals import Dialect, quoted
from vllm_lite.parsers.reasoning import ReasoningFormat, ReasoningSplitter, TaggedReasoning
from vllm_lite.parsers.registry import register_reasoning_parser, register_tool_parser
from vllm_lite.parsers.source import EndOfText, Malformed, Reading, Source
from vllm_lite.parsers.tools.json_calls import JsonTools
from vllm_lite.parsers.tools.named import NamedTools
from vllm_lite.parsers.tools.pythonic import PythonicTools
from vllm_lite.parsers.tools.reader import CallWriter, ToolFormat
from vllm_lite.parsers.tools.xml_calls import Tag, XmlTools

__all__ = [
    "CallWriter",
    "Dialect",
    "EndOfText",
    "JsonTools",
    "Malformed",
    "NamedTools",
    "PythonicTools",
    "Reading",
    "ReasoningFormat",
    "ReasoningSplitter",
    "Source",
    "Tag",
    "TaggedReasoning",
    "ToolFormat",
    "XmlTools",
    "quoted",
    "register_reasoning_parser",
    "register_tool_parser",
]
