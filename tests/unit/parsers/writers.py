"""How a model writes calls, for each tool parser: the inverse of reading, made without it."""

# The models' own marks are full of characters that look like others.
# ruff: noqa: RUF001

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

Calls = list[tuple[str, dict[str, Any]]]
Writer = Callable[[Calls], str]


def dump(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def text_of(value: Any) -> str:
    return value if isinstance(value, str) else dump(value)


def each(write: Callable[[str, dict[str, Any]], str], begin: str = "", end: str = "") -> Writer:
    return lambda calls: begin + "".join(write(name, args) for name, args in calls) + end


def objects(begin: str, end: str, key: str = "arguments") -> Writer:
    return each(lambda name, args: begin + dump({"name": name, key: args}) + end)


def array(begin: str, end: str, name_key: str = "name", key: str = "arguments") -> Writer:
    return lambda calls: begin + dump([{name_key: name, key: args} for name, args in calls]) + end


def python(value: Any) -> str:
    return repr(value)


def pythonic(begin: str, end: str, separator: str = ", ") -> Writer:
    def call(name: str, args: dict[str, Any]) -> str:
        return f"{name}({', '.join(f'{key}={python(value)}' for key, value in args.items())})"

    return lambda calls: begin + separator.join(call(*each_call) for each_call in calls) + end


def functions(begin: str, end: str, line: str = "\n") -> Writer:
    def call(name: str, args: dict[str, Any]) -> str:
        body = "".join(
            f"<parameter={key}>{line}{text_of(value)}{line}</parameter>\n"
            for key, value in args.items()
        )
        return f"{begin}\n<function={name}>\n{body}</function>\n{end}\n"

    return each(call)


def pairs(head: str, space: str, tail: str, begin: str = "", end: str = "") -> Writer:
    def call(name: str, args: dict[str, Any]) -> str:
        body = "".join(
            f"<{space}arg_key>{key}</{space}arg_key>"
            f"<{space}arg_value>{text_of(value)}</{space}arg_value>"
            for key, value in args.items()
        )
        return head.format(name) + body + tail

    return each(call, begin, end)


def invoked(begin: str, end: str, space: str = "", is_typed: bool = False) -> Writer:
    def call(name: str, args: dict[str, Any]) -> str:
        body = ""
        for key, value in args.items():
            kind = f' string="{dump(isinstance(value, str))}"' if is_typed else ""
            tag = f"{space}parameter"
            body += f'<{tag} name="{key}"{kind}>{text_of(value)}</{tag}>\n'
        return f'<{space}invoke name="{name}">\n{body}</{space}invoke>\n'

    return each(call, f"{begin}\n", end)


def named(call: str, call_end: str, begin: str = "", end: str = "") -> Writer:
    return lambda calls: (
        begin
        + "".join(
            call.replace("NAME", name).replace("INDEX", str(index)) + dump(args) + call_end
            for index, (name, args) in enumerate(calls)
        )
        + end
    )


def gemma(quote: str, begin: str, end: str) -> Writer:
    def value_of(value: Any) -> str:
        if isinstance(value, str):
            return quote + value + quote
        if isinstance(value, dict):
            return "{" + members(value) + "}"
        if isinstance(value, list):
            return "[" + ",".join(map(value_of, value)) + "]"
        return dump(value)

    def members(args: dict[str, Any]) -> str:
        return ",".join(f"{key}:{value_of(value)}" for key, value in args.items())

    return each(lambda name, args: f"{begin}call:{name}{{{members(args)}}}{end}")


def nested(calls: Calls) -> str:
    mark = "]<]minimax[>["

    def element(name: str, value: Any) -> str:
        if isinstance(value, dict):
            body = "".join(element(key, part) for key, part in value.items())
        elif isinstance(value, list):
            body = "".join(element("item", part) for part in value)
        else:
            body = text_of(value)
        return f"{mark}<{name}>{body}{mark}</{name}>"

    text = f"{mark}<tool_call>\n"
    for name, args in calls:
        body = "\n".join(element(key, value) for key, value in args.items())
        text += f'{mark}<invoke name="{name}">{body}{mark}</invoke>\n'
    return f"{text}{mark}</tool_call>"


def kimi_k3(calls: Calls) -> str:
    kinds = {str: "string", bool: "boolean", dict: "object", list: "array", type(None): "null"}
    text = "<|open|>tools<|sep|>"
    for index, (name, args) in enumerate(calls, 1):
        text += f'<|open|>call tool="{name}" index="{index}"<|sep|>'
        for key, value in args.items():
            kind = kinds.get(type(value), "number")
            text += f'<|open|>argument key="{key}" type="{kind}"<|sep|>{text_of(value)}'
            text += "<|close|>argument<|sep|>"
        text += "<|close|>call<|sep|>"
    return f"{text}<|close|>tools<|sep|>"


def muse(calls: Calls) -> str:
    write = invoked("<atem:function_calls>", "</atem:function_calls>", "atem:")
    return "".join(
        f"<|start|>assistant to={call[0]}<|message|>{write([call])}<|eom|>" for call in calls
    )


def harmony(calls: Calls) -> str:
    start = "<|start|>assistant<|channel|>commentary to=functions."
    return "".join(
        f"{start}{name} <|constrain|>json<|message|>{dump(args)}<|call|>" for name, args in calls
    )


def plamo(word: str) -> str:
    return f"<|plamo:{word}:plamo|>"


def minicpm(name: str, args: dict[str, Any]) -> str:
    body = "".join(f'<param name="{key}">{text_of(value)}</param>' for key, value in args.items())
    return f'<function name="{name}">{body}</function>'


HERMES = objects("<tool_call>\n", "\n</tool_call>\n")
COHERE = array("<|START_ACTION|>", "<|END_ACTION|>", "tool_name", "parameters")
QWEN3 = functions("<tool_call>", "</tool_call>")
GLM = pairs("<tool_call>{}\n", "", "</tool_call>\n")
D3_BEGIN, D3_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
D3_CALL, D3_SEP, D3_CALL_END = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"

WRITERS: dict[str, Writer] = {
    "apertus": lambda calls: (
        "<|tools_prefix|>" + dump([{name: args} for name, args in calls]) + "<|tools_suffix|>"
    ),
    "cohere_command3": COHERE,
    "cohere_command4": COHERE,
    "deepseek_v3": named(
        f"{D3_CALL}function{D3_SEP}NAME\n```json\n", f"\n```{D3_CALL_END}", D3_BEGIN, D3_END
    ),
    "deepseek_v31": named(f"{D3_CALL}NAME{D3_SEP}", D3_CALL_END, D3_BEGIN, D3_END),
    "deepseek_v32": invoked(
        "<｜DSML｜function_calls>", "</｜DSML｜function_calls>", "｜DSML｜", True
    ),
    "deepseek_v4": invoked("<｜DSML｜tool_calls>", "</｜DSML｜tool_calls>", "｜DSML｜", True),
    "deepseek_v41": invoked("<｜DSML｜ calls>", "</｜DSML｜ calls>", "｜DSML｜ ", True),
    "dots": invoked("<dots_function_call>", "</dots_function_call>"),
    "ernie45": HERMES,
    "functiongemma": gemma("<escape>", "<start_function_call>", "<end_function_call>"),
    "gemma4": gemma('<|"|>', "<|tool_call>", "<tool_call|>"),
    "gigachat3": objects("<|function_call|>", ""),
    "glm45": GLM,
    "glm47": pairs("<tool_call>{}", "", "</tool_call>"),
    "granite": array("<|tool_call|>", ""),
    "granite-20b-fc": objects("<function_call> ", ""),
    "granite4": objects("<tool_call>", "</tool_call>"),
    "hermes": HERMES,
    "hunyuan_a13b": array("<tool_calls>", "</tool_calls>"),
    "hy_v3": pairs(
        "<tool_call>{}<tool_sep>\n", "", "</tool_call>\n", "<tool_calls>\n", "</tool_calls>"
    ),
    "hy_v4": pairs("<tool_call>{}", "", "</tool_call>", "<tool_calls>", "</tool_calls>"),
    "inkling": objects("<|message_model|><|content_invoke_tool_json|>", "<|end_message|>", "args"),
    "internlm": objects("<|action_start|><|plugin|>", "<|action_end|>", "parameters"),
    "jamba": array("<tool_calls>", "</tool_calls>"),
    "k2_horizon": pairs(
        "<ifm|tool_call>{}",
        "ifm|",
        "</ifm|tool_call>",
        "<ifm|tool_calls>",
        "</ifm|tool_calls>",
    ),
    "kimi_k2": named(
        "<|tool_call_begin|>functions.NAME:INDEX<|tool_call_argument_begin|>",
        "<|tool_call_end|>",
        "<|tool_calls_section_begin|>",
        "<|tool_calls_section_end|>",
    ),
    "kimi_k3": kimi_k3,
    "lfm2": pythonic("<|tool_call_start|>[", "]<|tool_call_end|>"),
    "ling3": GLM,
    "llama3_json": lambda calls: "; ".join(
        dump({"name": name, "parameters": args}) for name, args in calls
    ),
    "llama4_json": lambda calls: (
        "<|python_tag|>"
        + "; ".join(dump({"name": name, "parameters": args}) for name, args in calls)
    ),
    "llama4_pythonic": pythonic("<|python_start|>[", "]<|python_end|>"),
    "longcat": objects("<longcat_tool_call>", "</longcat_tool_call>"),
    "mimo": functions("<tool_call>", "</tool_call>", line=""),
    "minicpm5": each(minicpm),
    "minimax_m2": invoked("<minimax:tool_call>", "</minimax:tool_call>"),
    "minimax_m3": nested,
    "mistral": named("[TOOL_CALLS]NAME[ARGS]", ""),
    "muse_glimmer": muse,
    "olmo3": pythonic("<function_calls>", "</function_calls>", "\n"),
    "openai": harmony,
    "phi4_mini_json": array("functools", ""),
    "plamo3": named(
        plamo("begin_tool_request")
        + plamo("begin_tool_name")
        + "NAME"
        + plamo("end_tool_name")
        + plamo("begin_tool_arguments")
        + "<|plamo:constrain|>json<|plamo:msg|>",
        plamo("end_tool_arguments") + plamo("end_tool_request"),
        plamo("begin_tool_requests"),
        plamo("end_tool_requests"),
    ),
    "poolside_v1": GLM,
    "pythonic": pythonic("[", "]"),
    "qwen3_coder": QWEN3,
    "qwen3_json": HERMES,
    "qwen3_xml": QWEN3,
    "seed_oss": functions("<seed:tool_call>", "</seed:tool_call>"),
    "step3": invoked(
        "<｜tool_calls_begin｜><｜tool_call_begin｜>function<｜tool_sep｜>",
        "<｜tool_call_end｜><｜tool_calls_end｜>",
        "steptml:",
    ),
    "step3p5": QWEN3,
    "xlam": array("", ""),
}
