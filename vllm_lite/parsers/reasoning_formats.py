"""Every reasoning parser's name and the format it reads."""

from __future__ import annotations

from vllm_lite.parsers.reasoning import ReasoningFormat, TaggedReasoning

THINK = TaggedReasoning()
# A call may begin before the reasoning was closed: it ends it.
THINK_OR_CALL = TaggedReasoning(implied_ends=("<tool_call>",))

REASONING_FORMATS: dict[str, ReasoningFormat] = {
    "deepseek_r1": THINK,
    "qwen3": THINK_OR_CALL,
}
