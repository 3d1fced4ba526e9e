"""Every reasoning parser's name and the format it reads."""

# Markers contain characters that look like others.
# ruff: noqa: RUF001

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

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


THINK = TaggedReasoning(implied_ends=("<｜tool▁calls▁begin｜>",))
# A call ends open reasoning.
QWEN3 = TaggedReasoning(implied_ends=("<tool_call>",))
GLM = replace(QWEN3, trims_end=True)
MINICPMV = replace(
    QWEN3,
    is_anywhere=True,
    fillers=(
        "<|im_end|>",
        *(mark.format(n) for n in range(12, 16) for mark in ("<reserved_{}>", "<|reserved_{}|>")),
    ),
)
NEMOTRON_V3 = replace(GLM, may_be_answer=True)
GRANITE_THINKING = replace(NEMOTRON_V3, trim_answer=SPACE)
DEEPSEEK_V4 = replace(
    GLM, implied_ends=tuple(f"<｜DSML｜{name}>" for name in ("tool_calls", *DEEPSEEK_V4_OTHERS))
)
DEEPSEEK_V41 = replace(GLM, implied_ends=("<｜DSML｜ calls>",))
KIMI_K2 = replace(GLM, implied_ends=("<|tool_calls_section_begin|>",))
MINIMAX_M2 = replace(GLM, implied_ends=("<minimax:tool_call>",))


def hunyuan_reasoning(suffix: str) -> TaggedReasoning:
    """HY's tags; some checkpoints end the names of theirs with `suffix`."""
    return TaggedReasoning(
        starts=(f"<think{suffix}>",),
        ends=(f"</think{suffix}>",),
        implied_ends=(f"<tool_calls{suffix}>",),
    )


HUNYUAN = hunyuan_reasoning("")
ERNIE45 = TaggedReasoning(
    implied_ends=("<tool_call>",),
    wrappers=("<response>\n", "\n</response>", "<response>", "</response>"),
    trim_answer="\n",
)
HUNYUAN_A13B = TaggedReasoning(
    starts=("<think>\n", "<think>"),
    ends=("\n</think>\n<answer>\n", "</think>\n<answer>\n", "\n</think>", "</think>"),
    implied_ends=("<answer>\n", "<answer>"),
    is_bare=False,
    wrappers=("\n</answer>", "<answer>\n", "<answer>", "</answer>"),
    trim_answer="\n",
)
GRANITE = TaggedReasoning(
    starts=("Here is my thought process:", "Here's my thought process:"),
    ends=("Here is my response:", "Here's my response:"),
    is_bare=False,
    needs_special_tokens=False,
)
COHERE = TaggedReasoning(
    starts=("<|START_THINKING|>",),
    ends=("<|END_THINKING|>",),
    implied_ends=("<|START_ACTION|>", "<|START_RESPONSE|>", "<|START_TEXT|>"),
    is_bare=False,
    is_anywhere=True,
    wrappers=("<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>"),
)
INKLING = TaggedReasoning(
    starts=("<|message_model|><|content_thinking|>", "<|content_thinking|>"),
    ends=("<|end_message|>", "<|content_model_end_sampling|>"),
    implied_ends=(f"<|message_model|>{INKLING_TOOL}", INKLING_TOOL),
    is_bare=False,
    is_anywhere=True,
    wrappers=(
        "<|message_model|><|content_text|>",
        "<|content_text|>",
        "<|end_message|>",
        "<|content_model_end_sampling|>",
    ),
)
KIMI_K3 = TaggedReasoning(
    starts=("<|open|>think<|sep|>",),
    ends=("<|close|>think<|sep|>",),
    implied_ends=("<|open|>tools<|sep|>", "<|open|>response<|sep|>"),
    is_bare=False,
    is_anywhere=True,
    wrappers=(
        "<|open|>response<|sep|>",
        "<|close|>response<|sep|>",
        "<|close|>message<|sep|>",
    ),
)
K2_HORIZON = TaggedReasoning(
    starts=("<ifm|think>", "<ifm|think_fast>", "<ifm|think_faster>"),
    ends=("</ifm|think>", "</ifm|think_fast>", "</ifm|think_faster>"),
    implied_ends=("<ifm|tool_calls>",),
    is_bare=False,
)
PLAMO3 = TaggedReasoning(
    starts=("<|plamo:begin_think:plamo|>",),
    ends=("<|plamo:end_think:plamo|>",),
    implied_ends=("<|plamo:begin_tool_requests:plamo|>",),
    is_anywhere=True,
)
SEED_OSS = TaggedReasoning(
    starts=("<seed:think>",),
    ends=("</seed:think>",),
    implied_ends=("<seed:tool_call>",),
)

REASONING_FORMATS: dict[str, ReasoningFormat] = {
    "cohere_command3": COHERE,
    "cohere_command4": COHERE,
    "deepseek_r1": THINK,
    "deepseek_v3": THINK,
    "deepseek_v4": DEEPSEEK_V4,
    "deepseek_v41": DEEPSEEK_V41,
    "ernie45": ERNIE45,
    "gemma4": TaggedReasoning(
        starts=("<|channel>thought\n", "<|channel>thought", "<|channel>"),
        first_starts=("thought\n",),
        ends=("<channel|>",),
        implied_ends=("<|tool_call>",),
        is_bare=False,
        is_anywhere=True,
        trims_end=True,
    ),
    "glm45": GLM,
    "glm47": GLM,
    "granite": GRANITE,
    "granite_thinking_parser": GRANITE_THINKING,
    "holo2": THINK,
    "hunyuan_a13b": HUNYUAN_A13B,
    "hy_v3": HUNYUAN,
    "hy_v4": HUNYUAN,
    "inkling": INKLING,
    "k2_horizon": K2_HORIZON,
    "kimi_k2": KIMI_K2,
    "kimi_k3": KIMI_K3,
    "ling3": GLM,
    "mimo": QWEN3,
    "minicpmv": MINICPMV,
    "minimax_m2": MINIMAX_M2,
    "minimax_m2_append_think": PrefixedAnswer("<think>"),
    "minimax_m3": TaggedReasoning(
        starts=("<mm:think>",),
        ends=("</mm:think>",),
        is_bare=False,
        is_anywhere=True,
        implied_ends=("]<]minimax[>[<tool_call>",),
    ),
    "mistral": TaggedReasoning(
        starts=("[THINK]",),
        ends=("[/THINK]",),
        is_bare=False,
        is_anywhere=True,
        implied_ends=("[TOOL_CALLS]",),
    ),
    "muse_glimmer": ChannelReasoning(MUSE, starts=(" to=self<|message|>",), ends=("<|eom|>",)),
    "nemotron_v3": NEMOTRON_V3,
    "olmo3": TaggedReasoning(),
    "openai_gptoss": ChannelReasoning(
        HARMONY, starts=("<|channel|>analysis<|message|>",), ends=("<|end|>",)
    ),
    "plamo3": PLAMO3,
    "poolside_v1": QWEN3,
    "qwen3": QWEN3,
    "seed_oss": SEED_OSS,
    "step3": TaggedReasoning(implied_ends=("<｜tool_calls_begin｜>",)),
    "step3p5": GLM,
}

_GLM_SWITCH = Switch(("thinking", "enable_thinking"), is_on_unsaid=True)
SWITCHES: dict[str, Switch] = {
    "deepseek_v3": Switch(("thinking", "enable_thinking")),
    "glm45": _GLM_SWITCH,
    "glm47": _GLM_SWITCH,
    "hy_v3": Switch(("reasoning_effort",), off_value="no_think"),
    "poolside_v1": Switch(("thinking", "enable_thinking")),
}
