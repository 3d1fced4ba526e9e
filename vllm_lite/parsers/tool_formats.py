"""Every tool parser's name and the format it reads."""

from __future__ import annotations

from vllm_lite.parsers.tool_json import JsonTools
from vllm_lite.parsers.tool_reader import ToolFormat

HERMES = JsonTools(openers=("<tool_call>",), closers=("</tool_call>",))
LLAMA3_JSON = JsonTools(openers=("<|python_tag|>", "{"), bare=("{",), separators=(";",))

TOOL_FORMATS: dict[str, ToolFormat] = {
    "hermes": HERMES,
    "qwen3_json": HERMES,
    "llama3_json": LLAMA3_JSON,
    "llama4_json": LLAMA3_JSON,
}
