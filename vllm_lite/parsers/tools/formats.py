"""Every tool parser's name and the format it reads."""

# Markers contain characters that look like others.
# ruff: noqa: RUF001

from __future__ import annotations

from dataclasses import replace

from vllm_lite.parsers.channels import HARMONY, MUSE, ChannelTools
from vllm_lite.parsers.literals import FUNCTION_GEMMA, GEMMA
from vllm_lite.parsers.tools.json_calls import JsonTools
from vllm_lite.parsers.tools.named import NamedTools
from vllm_lite.parsers.tools.nested import NestedTools
from vllm_lite.parsers.tools.pythonic import PythonicTools
from vllm_lite.parsers.tools.reader import ToolFormat
from vllm_lite.parsers.tools.xml_calls import Tag, XmlTools

INKLING_TOOL = "<|content_invoke_tool_json|>"
_PLAMO = "<|plamo:{}:plamo|>".format
_M3 = "]<]minimax[>["


def hunyuan(suffix: str) -> XmlTools:
    """HY's tags; some checkpoints end the names of theirs with `suffix`."""
    return XmlTools(
        openers=(f"<tool_calls{suffix}>",),
        closers=(f"</tool_calls{suffix}>",),
        call=Tag(f"<tool_call{suffix}>", "\n"),
        name_ends=(f"<tool_sep{suffix}>",),
        call_end=f"</tool_call{suffix}>",
        parameter=Tag(f"<arg_key{suffix}>", f"</arg_key{suffix}>"),
        value_start=f"<arg_value{suffix}>",
        value_end=f"</arg_value{suffix}>",
    )


DEEPSEEK_V4_OTHERS = ("toolcalls", "tool")


def dsml(wrapper: str, space: str = "", others: tuple[str, ...] = ()) -> XmlTools:
    """DeepSeek's tags from V3.2 on; models write `others` for the wrapper, or leave it out."""
    mark = f"｜DSML｜{space}"
    call = f"<{mark}invoke"
    return XmlTools(
        openers=(*(f"<{mark}{name}>" for name in (wrapper, *others)), call),
        bare=(call,),
        closers=(f"</{mark}{wrapper}>",),
        call=Tag(call, attribute="name"),
        call_end=f"</{mark}invoke>",
        parameter=Tag(f"<{mark}parameter", attribute="name"),
        type_attribute="string",
        value_end=f"</{mark}parameter>",
        holders=("arguments", "input"),
        wrappers=(f"<{mark}{wrapper}", f"{mark}{wrapper}>", f"<{mark}", f"</{mark}", mark),
    )


def invoked(opener: str, closer: str, space: str = "", leads: tuple[str, ...] = ()) -> XmlTools:
    """`<invoke name="f"><parameter name="k">v</parameter></invoke>`, names in a namespace."""
    return XmlTools(
        openers=(opener,),
        closers=(closer,),
        leads=leads,
        call=Tag(f"<{space}invoke", attribute="name"),
        call_end=f"</{space}invoke>",
        parameter=Tag(f"<{space}parameter", attribute="name"),
        value_end=f"</{space}parameter>",
    )


_QWEN3_XML = XmlTools(
    openers=("<tool_call>", "<function="),
    bare=("<function=",),
    closers=("</tool_call>",),
    call=Tag("<function="),
    call_end="</function>",
    parameter=Tag("<parameter="),
    value_end="</parameter>",
    trims_newlines=True,
)
_GLM = XmlTools(
    openers=("<tool_call>",),
    call=Tag("", "\n"),
    call_end="</tool_call>",
    parameter=Tag("<arg_key>", "</arg_key>"),
    value_start="<arg_value>",
    value_end="</arg_value>",
    checks_names=True,
)
_DEEPSEEK_V3 = NamedTools(
    openers=("<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>"),
    call="<｜tool▁call▁begin｜>",
    lead="function<｜tool▁sep｜>",
    name_ends=("\n",),
    argument_leads=("```json",),
    call_ends=("```", "<｜tool▁call▁end｜>"),
    closers=("<｜tool▁calls▁end｜>",),
)
# Names of parsers that read JSON objects with name and arguments -> their format.
_OF_OBJECTS: dict[str, ToolFormat] = {
    "granite4 hermes qwen3_json": JsonTools(openers=("<tool_call>",), closers=("</tool_call>",)),
    "ernie45": JsonTools(
        openers=("<tool_call>",),
        closers=("</tool_call>",),
        wrappers=("<response>\n", "\n</response>", "<response>", "</response>"),
    ),
    "jamba": JsonTools(openers=("<tool_calls>",), closers=("</tool_calls>",)),
    "hunyuan_a13b": JsonTools(
        openers=("<tool_calls>",), closers=("</tool_calls>",), id_style="call"
    ),
    "llama3_json llama4_json": JsonTools(
        openers=("<|python_tag|>", "{"), bare=("{",), separators=(";",), needs_arguments=True
    ),
    "xlam": JsonTools(
        openers=("<tool_call>", "```json", "[TOOL_CALLS]", "["),
        bare=("[",),
        checked=("```json",),
        closers=("</tool_call>", "```"),
        needs_arguments=True,
        id_style="call",
        needs_special_tokens=False,
    ),
    "inkling": JsonTools(
        openers=(f"<|message_model|>{INKLING_TOOL}", INKLING_TOOL),
        closers=("<|end_message|>",),
        argument_keys=("args", "arguments"),
        wrappers=(
            *("<|message_model|>", "<|content_text|>"),
            *("<|end_message|>", "<|content_model_end_sampling|>"),
        ),
    ),
    "cohere_command3 cohere_command4": JsonTools(
        openers=("<|START_ACTION|>",),
        closers=("<|END_ACTION|>",),
        name_keys=("tool_name", "name"),
        wrappers=("<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>"),
    ),
    "apertus": JsonTools(
        openers=("<|tools_prefix|>",), closers=("<|tools_suffix|>",), is_keyed_by_name=True
    ),
    "gigachat3": JsonTools(
        openers=("<|function_call|>", "function call<|role_sep|>\n"), wrappers=("<|message_sep|>",)
    ),
    "granite": JsonTools(openers=("<|tool_call|>", "<tool_call>")),
    "granite-20b-fc": JsonTools(openers=("<function_call>",)),
    "internlm": JsonTools(
        openers=("<|action_start|><|plugin|>", "<|action_start|> <|plugin|>"),
        closers=("<|action_end|>",),
        argument_keys=("parameters", "arguments"),
        wrappers=("<|action_start|>", "<|plugin|>"),
    ),
    "longcat": JsonTools(openers=("<longcat_tool_call>",), closers=("</longcat_tool_call>",)),
    "phi4_mini_json": JsonTools(openers=("functools",), needs_special_tokens=False),
}
# A name between markers, then arguments as JSON.
_OF_NAMES: dict[str, ToolFormat] = {
    "deepseek_v3": _DEEPSEEK_V3,
    "deepseek_v31": replace(
        _DEEPSEEK_V3,
        lead="",
        name_ends=("<｜tool▁sep｜>",),
        argument_leads=(),
        call_ends=("<｜tool▁call▁end｜>",),
    ),
    "kimi_k2": NamedTools(
        openers=("<|tool_calls_section_begin|>", "<|tool_call_begin|>"),
        call="<|tool_call_begin|>",
        name_ends=("<|tool_call_argument_begin|>",),
        call_ends=("<|tool_call_end|>",),
        closers=("<|tool_calls_section_end|>",),
        has_ids=True,
        id_style="kimi_k2",
    ),
    "mistral": NamedTools(
        openers=("[TOOL_CALLS]",),
        name_ends=("[ARGS]",),
        json=JsonTools(openers=(), id_style="mistral"),
        id_style="mistral",
    ),
    "plamo3": NamedTools(
        openers=(_PLAMO("begin_tool_requests"),),
        call=_PLAMO("begin_tool_request"),
        lead=_PLAMO("begin_tool_name"),
        name_ends=(_PLAMO("end_tool_name"),),
        argument_leads=(_PLAMO("begin_tool_arguments"), "<|plamo:constrain|>json", "<|plamo:msg|>"),
        call_ends=(_PLAMO("end_tool_arguments"), _PLAMO("end_tool_request")),
        closers=(_PLAMO("end_tool_requests"),),
        wrappers=("<|plamo:tag|>",),
    ),
    "gemma4": NamedTools(
        openers=("<|tool_call>",),
        lead="call:",
        other_leads=(":",),
        call_ends=("<tool_call|>",),
        dialect=GEMMA,
    ),
    "functiongemma": NamedTools(
        openers=("<start_function_call>",),
        lead="call:",
        call_ends=("<end_function_call>",),
        dialect=FUNCTION_GEMMA,
        wrappers=("<escape>",),
    ),
}
# XML-like tags.
_OF_TAGS: dict[str, ToolFormat] = {
    "qwen3_coder qwen3_xml step3p5": _QWEN3_XML,
    "mimo": replace(_QWEN3_XML, trims_newlines=False),
    "seed_oss": replace(
        _QWEN3_XML, openers=("<seed:tool_call>", "<function="), closers=("</seed:tool_call>",)
    ),
    "glm45 glm47 ling3": _GLM,
    "poolside_v1": replace(_GLM, checks_names=False),
    "k2_horizon": XmlTools(
        json=JsonTools(openers=()),
        openers=("<ifm|tool_calls>",),
        closers=("</ifm|tool_calls>",),
        call=Tag("<ifm|tool_call>", "\n"),
        call_end="</ifm|tool_call>",
        parameter=Tag("<ifm|arg_key>", "</ifm|arg_key>"),
        type_tag=Tag("<ifm|arg_type>", "</ifm|arg_type>"),
        value_start="<ifm|arg_value>",
        value_end="</ifm|arg_value>",
    ),
    "hy_v3 hy_v4": hunyuan(""),
    "deepseek_v32": dsml("function_calls"),
    "deepseek_v4": dsml("tool_calls", others=DEEPSEEK_V4_OTHERS),
    "deepseek_v41": dsml("calls", " "),
    "kimi_k3": XmlTools(
        openers=("<|open|>tools<|sep|>",),
        closers=("<|close|>tools<|sep|>",),
        call=Tag("<|open|>call", "<|sep|>", attribute="tool"),
        call_end="<|close|>call<|sep|>",
        parameter=Tag("<|open|>argument", "<|sep|>", attribute="key"),
        type_attribute="type",
        value_end="<|close|>argument<|sep|>",
        wrappers=(
            *("<|open|>response<|sep|>", "<|close|>response<|sep|>", "<|close|>message<|sep|>"),
            *("<|open|>", "<|close|>", "<|sep|>"),
        ),
    ),
    "minicpm5": XmlTools(
        openers=("<function",),
        bare=("<function",),
        call=Tag("<function", attribute="name"),
        call_end="</function>",
        parameter=Tag("<param", attribute="name"),
        value_end="</param>",
        has_cdata=True,
        id_style="call",
    ),
    "step3": invoked(
        "<｜tool_calls_begin｜>",
        "<｜tool_calls_end｜>",
        "steptml:",
        leads=("<｜tool_call_end｜>", "<｜tool_call_begin｜>", "function", "<｜tool_sep｜>"),
    ),
    "dots": replace(
        invoked("<dots_function_call>", "</dots_function_call>"),
        checks_names=True,
        json=JsonTools(openers=()),
    ),
    "minimax_m2": replace(
        invoked("<minimax:tool_call>", "</minimax:tool_call>"), checks_names=True
    ),
    "minimax_m3": NestedTools(
        mark=_M3, openers=(f"{_M3}<tool_call>",), closers=(f"{_M3}</tool_call>",)
    ),
    "muse_glimmer": ChannelTools(
        MUSE, invoked("<atem:function_calls>", "</atem:function_calls>", "atem:")
    ),
}
_OTHERS: dict[str, ToolFormat] = {
    "openai": ChannelTools(HARMONY),
    "lfm2": PythonicTools(
        openers=("<|tool_call_start|>",), closers=("<|tool_call_end|>",), repeats_calls=True
    ),
    "llama4_pythonic": PythonicTools(
        openers=("<|python_start|>", "["), bare=("[",), closers=("<|python_end|>",)
    ),
    "olmo3": PythonicTools(openers=("<function_calls>",), closers=("</function_calls>",)),
    "pythonic": PythonicTools(openers=("[",), bare=("[",), needs_special_tokens=False),
}

TOOL_FORMATS: dict[str, ToolFormat] = {
    name: form
    for formats in (_OF_OBJECTS, _OF_NAMES, _OF_TAGS, _OTHERS)
    for names, form in formats.items()
    for name in names.split()
}
