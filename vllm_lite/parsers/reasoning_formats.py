"""Every reasoning parser's name and the format it reads."""

# Markers contain characters that look like others.
# ruff: noqa: RUF001

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from vllm_lite.parsers.channels import HARMONY, MUSE, ChannelReasoning
from vllm_lite.parsers.reasoning import PrefixedAnswer, ReasoningFormat, TaggedReasoning
from vllm_lite.parsers.source import SPACE
from vllm_lite.parsers.tools.formats import DEEPSEEK_V4_OTHERS, INKLING_TOOL


@dataclass(frozen=True)
class Switch:
    """Whether a model reasons, as the arguments of its chat template say."""

    arguments: tuple[str, ...]
    off_value: str = ""
    is_on_unsaid: bool = False

    def is_on(self, template_kwargs: Mapping[str, object]) -> bool:
        """Whether one of the arguments is set, and not to what means off."""
        given = [template_kwargs.get(name) for name in self.arguments]
        said = [value for value in given if value is not None]
        if not said:
            return self.is_on_unsaid
        return any(value and value != self.off_value for value in said)


def _marked(start: str, end: str, *implied_ends: str, **options: Any) -> TaggedReasoning:
    return TaggedReasoning((start,), (end,), implied_ends=implied_ends, **options)


def hunyuan_reasoning(suffix: str) -> TaggedReasoning:
    """HY's tags; some checkpoints end the names of theirs with `suffix`."""
    return _marked(f"<think{suffix}>", f"</think{suffix}>", f"<tool_calls{suffix}>")


# A call ends open reasoning.
_QWEN3 = TaggedReasoning(implied_ends=("<tool_call>",))
_GLM = replace(_QWEN3, trims_end=True)
_NEMOTRON_V3 = replace(_GLM, may_be_answer=True)
_COHERE = _marked(
    "<|START_THINKING|>",
    "<|END_THINKING|>",
    *("<|START_ACTION|>", "<|START_RESPONSE|>", "<|START_TEXT|>"),
    is_bare=False,
    is_anywhere=True,
    wrappers=("<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>"),
)
_DSML_CALLS = tuple(f"<｜DSML｜{name}>" for name in ("tool_calls", *DEEPSEEK_V4_OTHERS))
_MINICPM_FILLERS = (
    "<|im_end|>",
    *(mark.format(n) for n in range(12, 16) for mark in ("<reserved_{}>", "<|reserved_{}|>")),
)
# Names of parsers -> the format that they read.
_FORMATS: dict[str, ReasoningFormat] = {
    "deepseek_r1 deepseek_v3 holo2": TaggedReasoning(implied_ends=("<｜tool▁calls▁begin｜>",)),
    "mimo poolside_v1 qwen3": _QWEN3,
    "glm45 glm47 ling3 step3p5": _GLM,
    "olmo3": TaggedReasoning(),
    "step3": TaggedReasoning(implied_ends=("<｜tool_calls_begin｜>",)),
    "minicpmv": replace(_QWEN3, is_anywhere=True, fillers=_MINICPM_FILLERS),
    "nemotron_v3": _NEMOTRON_V3,
    "granite_thinking_parser": replace(_NEMOTRON_V3, trim_answer=SPACE),
    "deepseek_v4": replace(_GLM, implied_ends=_DSML_CALLS),
    "deepseek_v41": replace(_GLM, implied_ends=("<｜DSML｜ calls>",)),
    "kimi_k2": replace(_GLM, implied_ends=("<|tool_calls_section_begin|>",)),
    "minimax_m2": replace(_GLM, implied_ends=("<minimax:tool_call>",)),
    "hy_v3 hy_v4": hunyuan_reasoning(""),
    "seed_oss": _marked("<seed:think>", "</seed:think>", "<seed:tool_call>"),
    "ernie45": TaggedReasoning(
        implied_ends=("<tool_call>",),
        wrappers=("<response>\n", "\n</response>", "<response>", "</response>"),
        trim_answer="\n",
    ),
    "hunyuan_a13b": TaggedReasoning(
        starts=("<think>\n", "<think>"),
        ends=("\n</think>\n<answer>\n", "</think>\n<answer>\n", "\n</think>", "</think>"),
        implied_ends=("<answer>\n", "<answer>"),
        is_bare=False,
        wrappers=("\n</answer>", "<answer>\n", "<answer>", "</answer>"),
        trim_answer="\n",
    ),
    "granite": TaggedReasoning(
        starts=("Here is my thought process:", "Here's my thought process:"),
        ends=("Here is my response:", "Here's my response:"),
        is_bare=False,
        needs_special_tokens=False,
    ),
    "cohere_command3 cohere_command4": _COHERE,
    "gemma4": TaggedReasoning(
        starts=("<|channel>thought\n", "<|channel>thought", "<|channel>"),
        first_starts=("thought\n",),
        ends=("<channel|>",),
        implied_ends=("<|tool_call>",),
        is_bare=False,
        is_anywhere=True,
        trims_end=True,
    ),
    "inkling": TaggedReasoning(
        starts=("<|message_model|><|content_thinking|>", "<|content_thinking|>"),
        ends=("<|end_message|>", "<|content_model_end_sampling|>"),
        implied_ends=(f"<|message_model|>{INKLING_TOOL}", INKLING_TOOL),
        is_bare=False,
        is_anywhere=True,
        wrappers=(
            *("<|message_model|><|content_text|>", "<|content_text|>"),
            *("<|end_message|>", "<|content_model_end_sampling|>"),
        ),
    ),
    "k2_horizon": TaggedReasoning(
        starts=("<ifm|think>", "<ifm|think_fast>", "<ifm|think_faster>"),
        ends=("</ifm|think>", "</ifm|think_fast>", "</ifm|think_faster>"),
        implied_ends=("<ifm|tool_calls>",),
        is_bare=False,
    ),
    "kimi_k3": _marked(
        "<|open|>think<|sep|>",
        "<|close|>think<|sep|>",
        *("<|open|>tools<|sep|>", "<|open|>response<|sep|>"),
        is_bare=False,
        is_anywhere=True,
        wrappers=("<|open|>response<|sep|>", "<|close|>response<|sep|>", "<|close|>message<|sep|>"),
    ),
    "minimax_m2_append_think": PrefixedAnswer("<think>"),
    "minimax_m3": _marked(
        "<mm:think>", "</mm:think>", "]<]minimax[>[<tool_call>", is_bare=False, is_anywhere=True
    ),
    "mistral": _marked("[THINK]", "[/THINK]", "[TOOL_CALLS]", is_bare=False, is_anywhere=True),
    "plamo3": _marked(
        "<|plamo:begin_think:plamo|>",
        "<|plamo:end_think:plamo|>",
        "<|plamo:begin_tool_requests:plamo|>",
        is_anywhere=True,
    ),
    "muse_glimmer": ChannelReasoning(MUSE, starts=(" to=self<|message|>",), ends=("<|eom|>",)),
    "openai_gptoss": ChannelReasoning(
        HARMONY, starts=("<|channel|>analysis<|message|>",), ends=("<|end|>",)
    ),
}
REASONING_FORMATS: dict[str, ReasoningFormat] = {
    name: form for names, form in _FORMATS.items() for name in names.split()
}

_THINKING = Switch(("thinking", "enable_thinking"))
_GLM_THINKING = replace(_THINKING, is_on_unsaid=True)
SWITCHES: dict[str, Switch] = {
    **dict.fromkeys(("deepseek_v3", "poolside_v1"), _THINKING),
    **dict.fromkeys(("glm45", "glm47"), _GLM_THINKING),
    "hy_v3": Switch(("reasoning_effort",), off_value="no_think"),
}
