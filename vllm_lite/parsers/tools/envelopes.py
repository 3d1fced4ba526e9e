"""How each format is written where a call is forced: the text around names and arguments.

Data for `tool_constraint`. A format that is not here is forced as plain JSON.
"""

# Markers contain characters that look like others.
# ruff: noqa: RUF001

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Envelope:
    """`begin` call `separator` call ... `end`; a call is `call` arguments `call_end`.

    `{name}` stands for the tool's name and `{index}` for a number. Arguments are JSON where
    `argument` is empty, otherwise `argument` value `argument_end` for each, with `{key}`, and with
    `{type}` or `{is_string}` for what the value is.
    """

    call: str
    call_end: str = ""
    begin: str = ""
    end: str = ""
    separator: str = ""
    argument: str = ""
    argument_end: str = ""
    before: str = ""  # an optional prefix
    # Its beginning occurs in prose, so free calls are not searched for it.
    is_bare: bool = False


def _array(begin: str, end: str = "", name: str = "name", arguments: str = "arguments") -> Envelope:
    call = f'{{"{name}": "NAME", "{arguments}": '.replace("NAME", "{name}")
    return Envelope(begin=f"{begin}[", call=call, call_end="}", separator=", ", end=f"]{end}")


def _objects(
    begin: str, end: str = "", arguments: str = "arguments", between: str = ""
) -> Envelope:
    call = begin + f'{{"name": "NAME", "{arguments}": '.replace("NAME", "{name}")
    return Envelope(call=call, call_end="}" + end, separator=between)


def _functions(begin: str, end: str, line: str = "\n") -> Envelope:
    return Envelope(
        call=f"{begin}\n<function={{name}}>\n",
        call_end=f"</function>\n{end}",
        separator="\n",
        argument=f"<parameter={{key}}>{line}",
        argument_end=f"{line}</parameter>\n",
    )


def _invoked(begin: str, end: str, space: str = "", attribute: str = "") -> Envelope:
    return Envelope(
        begin=f"{begin}\n",
        call=f'<{space}invoke name="{{name}}">\n',
        call_end=f"</{space}invoke>\n",
        end=end,
        argument=f'<{space}parameter name="{{key}}"{attribute}>',
        argument_end=f"</{space}parameter>\n",
    )


def _dsml(wrapper: str, gap: str = "") -> Envelope:
    mark = f"｜DSML｜{gap}"
    return _invoked(f"<{mark}{wrapper}>", f"</{mark}{wrapper}>", mark, ' string="{is_string}"')


def _pairs(
    call: str, call_end: str, space: str = "", line: str = "", begin: str = "", end: str = ""
) -> Envelope:
    return Envelope(
        begin=begin,
        call=f"{call}{line}",
        call_end=call_end,
        end=end,
        argument=f"<{space}arg_key>{{key}}</{space}arg_key>{line}<{space}arg_value>",
        argument_end=f"</{space}arg_value>{line}",
    )


_HERMES = _objects("<tool_call>\n", "\n</tool_call>", between="\n")
_LLAMA = Envelope(
    call='{"name": "{name}", "parameters": ', call_end="}", separator="; ", is_bare=True
)
_COHERE = Envelope(
    begin="<|START_ACTION|>[",
    call='{"tool_call_id": "{index}", "tool_name": "{name}", "parameters": ',
    call_end="}",
    separator=", ",
    end="]<|END_ACTION|>",
)
_QWEN3 = _functions("<tool_call>", "</tool_call>")
_PLAMO = "<|plamo:{}:plamo|>".format

ENVELOPES: dict[str, Envelope] = {
    "apertus": Envelope(
        begin="<|tools_prefix|>[",
        call='{"{name}": ',
        call_end="}",
        separator=", ",
        end="]<|tools_suffix|>",
    ),
    "cohere_command3": _COHERE,
    "cohere_command4": _COHERE,
    "deepseek_v3": Envelope(
        begin="<｜tool▁calls▁begin｜>",
        call="<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n",
        call_end="\n```<｜tool▁call▁end｜>",
        separator="\n",
        end="<｜tool▁calls▁end｜>",
    ),
    "deepseek_v31": Envelope(
        begin="<｜tool▁calls▁begin｜>",
        call="<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>",
        call_end="<｜tool▁call▁end｜>",
        end="<｜tool▁calls▁end｜>",
    ),
    "deepseek_v32": _dsml("function_calls"),
    "deepseek_v4": _dsml("tool_calls"),
    "deepseek_v41": _dsml("calls", " "),
    "dots": _invoked("<dots_function_call>", "</dots_function_call>"),
    "ernie45": _HERMES,
    "gigachat3": _objects("<|function_call|>"),
    "glm45": _pairs("<tool_call>{name}", "</tool_call>", line="\n"),
    "glm47": _pairs("<tool_call>{name}", "</tool_call>"),
    "granite": _array("<|tool_call|>"),
    "granite-20b-fc": _objects("<function_call> "),
    "granite4": _HERMES,
    "hermes": _HERMES,
    "hunyuan_a13b": _array("<tool_calls>", "</tool_calls>"),
    "hy_v3": _pairs(
        "<tool_call>{name}<tool_sep>\n",
        "</tool_call>\n",
        line="\n",
        begin="<tool_calls>\n",
        end="</tool_calls>",
    ),
    "hy_v4": _pairs("<tool_call>{name}", "</tool_call>", begin="<tool_calls>", end="</tool_calls>"),
    "inkling": _objects(
        "<|message_model|><|content_invoke_tool_json|>", "<|end_message|>", arguments="args"
    ),
    "internlm": _objects("<|action_start|><|plugin|>", "<|action_end|>", arguments="parameters"),
    "jamba": _array("<tool_calls>", "</tool_calls>"),
    "k2_horizon": _pairs(
        "<ifm|tool_call>{name}",
        "</ifm|tool_call>",
        "ifm|",
        begin="<ifm|tool_calls>",
        end="</ifm|tool_calls>",
    ),
    "kimi_k2": Envelope(
        begin="<|tool_calls_section_begin|>",
        call="<|tool_call_begin|>functions.{name}:{index}<|tool_call_argument_begin|>",
        call_end="<|tool_call_end|>",
        end="<|tool_calls_section_end|>",
    ),
    "kimi_k3": Envelope(
        before="<|open|>response<|sep|><|close|>response<|sep|>",
        begin="<|open|>tools<|sep|>",
        call='<|open|>call tool="{name}" index="{index}"<|sep|>',
        call_end="<|close|>call<|sep|>",
        end="<|close|>tools<|sep|>",
        argument='<|open|>argument key="{key}" type="{type}"<|sep|>',
        argument_end="<|close|>argument<|sep|>",
    ),
    "ling3": _pairs("<tool_call>{name}", "</tool_call>", line="\n"),
    "llama3_json": _LLAMA,
    "llama4_json": _LLAMA,
    "longcat": _objects("<longcat_tool_call>", "</longcat_tool_call>", between="\n"),
    "mimo": _functions("<tool_call>", "</tool_call>", line=""),
    "minicpm5": Envelope(
        call='<function name="{name}">',
        call_end="</function>",
        argument='<param name="{key}">',
        argument_end="</param>",
    ),
    "minimax_m2": _invoked("<minimax:tool_call>", "</minimax:tool_call>"),
    "mistral": Envelope(call="[TOOL_CALLS]{name}[ARGS]"),
    "openai": Envelope(
        before="<|start|>assistant",
        call="<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>",
        # A call ends with a stop token, which the end of the grammar allows.
        separator="<|start|>assistant",
    ),
    "phi4_mini_json": _array("functools"),
    "plamo3": Envelope(
        begin=_PLAMO("begin_tool_requests"),
        call=_PLAMO("begin_tool_request")
        + _PLAMO("begin_tool_name")
        + "{name}"
        + _PLAMO("end_tool_name")
        + _PLAMO("begin_tool_arguments")
        + "<|plamo:constrain|>json<|plamo:msg|>",
        call_end=_PLAMO("end_tool_arguments") + _PLAMO("end_tool_request"),
        end=_PLAMO("end_tool_requests"),
    ),
    "poolside_v1": _pairs("<tool_call>{name}", "</tool_call>", line="\n"),
    "qwen3_coder": _QWEN3,
    "qwen3_json": _HERMES,
    "qwen3_xml": _QWEN3,
    "seed_oss": _functions("<seed:tool_call>", "</seed:tool_call>"),
    "step3": Envelope(
        begin="<｜tool_calls_begin｜>",
        call='<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="{name}">',
        call_end="</steptml:invoke><｜tool_call_end｜>",
        end="<｜tool_calls_end｜>",
        argument='<steptml:parameter name="{key}">',
        argument_end="</steptml:parameter>",
    ),
    "step3p5": _QWEN3,
}
