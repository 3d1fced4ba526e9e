"""How each format is written where a call is forced: the text around names and arguments.

The marks are those that the format reads; what is added here is their layout. Data for
`tool_constraint`. A format that is not here is forced as plain JSON.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from vllm_lite.parsers.tools.formats import TOOL_FORMATS
from vllm_lite.parsers.tools.json_calls import JsonTools
from vllm_lite.parsers.tools.named import NamedTools
from vllm_lite.parsers.tools.xml_calls import Tag, XmlTools


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


def _object(form: JsonTools) -> str:
    return f'{{"{form.name_keys[0]}": "{{name}}", "{form.argument_keys[0]}": '


def _array(form: JsonTools, call: str = "") -> Envelope:
    """Objects in an array between the marks."""
    begin, end = f"{form.openers[0]}[", "]" + "".join(form.closers)
    return Envelope(call or _object(form), "}", begin, end, separator=", ")


def _objects(form: JsonTools, before: str = "", after: str = "", between: str = "") -> Envelope:
    """Objects that each have the marks around them."""
    call = form.openers[0] + before + _object(form)
    return Envelope(call, "}" + after + "".join(form.closers), separator=between)


def _named(form: NamedTools, name: str = "{name}", line: str = "") -> Envelope:
    """Names between marks; the formats' first opener is around all calls, or the call's own."""
    mark = form.call or form.openers[0]
    call = f"{mark}{form.lead}{name}{form.name_ends[0]}{''.join(form.argument_leads)}{line}"
    begin, end = form.openers[0] if form.call else "", "".join(form.closers)
    return Envelope(call, line + "".join(form.call_ends), begin, end, separator=line)


def _tag(tag: Tag, name: str, more: str = "") -> str:
    named = f' {tag.attribute}="{name}"' if tag.attribute else name
    return f"{tag.start}{named}{more}{tag.end}"


def _tags(form: XmlTools, line: str = "\n", call_more: str = "", more: str = "") -> Envelope:
    """Tags with attributes, between the marks of all calls; `more` attributes for an argument."""
    begin = "" if form.bare == form.openers else form.openers[0] + line
    # The first lead ends a call before, the others begin one.
    ended, lead = "".join(form.leads[:1]), "".join(form.leads[1:])
    return Envelope(
        call=lead + _tag(form.call, "{name}", call_more) + line,
        call_end=form.call_end + ended + line,
        begin=begin,
        end="".join(form.closers),
        argument=_tag(form.parameter, "{key}", more),
        argument_end=form.value_end + line,
    )


def _functions(form: XmlTools, line: str = "\n") -> Envelope:
    """Tags with names, between the marks of each call."""
    return Envelope(
        call=f"{form.openers[0]}\n{_tag(form.call, '{name}')}\n",
        call_end=f"{form.call_end}\n{form.closers[0]}",
        separator="\n",
        argument=_tag(form.parameter, "{key}") + line,
        argument_end=f"{line}{form.value_end}\n",
    )


def _pairs(form: XmlTools, line: str = "", name: str = "{name}", gap: str = "") -> Envelope:
    """Elements for keys and values; `gap` is after the mark of all calls and after each call."""
    has_own = bool(form.call.start)
    return Envelope(
        begin=form.openers[0] + gap if has_own else "",
        call=f"{form.call.start or form.openers[0]}{name}{line}",
        call_end=form.call_end + gap,
        end="".join(form.closers),
        argument=_tag(form.parameter, "{key}") + line + form.value_start,
        argument_end=form.value_end + line,
    )


_OBJECT_LINES = partial(_objects, before="\n", after="\n", between="\n")
# Names of formats -> how they are laid out.
_LAYOUTS: dict[str, Callable[[Any], Envelope]] = {
    "apertus": partial(_array, call='{"{name}": '),
    "cohere_command3 cohere_command4": partial(
        _array, call='{"tool_call_id": "{index}", "tool_name": "{name}", "parameters": '
    ),
    "granite hunyuan_a13b jamba phi4_mini_json": _array,
    "ernie45 granite4 hermes qwen3_json": _OBJECT_LINES,
    "gigachat3 inkling internlm": _objects,
    "granite-20b-fc": partial(_objects, before=" "),
    "longcat": partial(_objects, between="\n"),
    "deepseek_v3": partial(_named, line="\n"),
    "deepseek_v31 mistral plamo3": _named,
    "kimi_k2": partial(_named, name="functions.{name}:{index}"),
    "deepseek_v32 deepseek_v4 deepseek_v41": partial(_tags, more=' string="{is_string}"'),
    "dots minimax_m2": _tags,
    "kimi_k3": partial(_tags, line="", call_more=' index="{index}"', more=' type="{type}"'),
    "minicpm5 step3": partial(_tags, line=""),
    "qwen3_coder qwen3_xml seed_oss step3p5": _functions,
    "mimo": partial(_functions, line=""),
    "glm45 ling3 poolside_v1": partial(_pairs, line="\n"),
    "glm47 hy_v4 k2_horizon": _pairs,
    "hy_v3": partial(_pairs, line="\n", name="{name}<tool_sep>\n", gap="\n"),
}
_LLAMA = Envelope('{"name": "{name}", "parameters": ', "}", separator="; ", is_bare=True)
ENVELOPES: dict[str, Envelope] = {
    name: layout(TOOL_FORMATS[name]) for names, layout in _LAYOUTS.items() for name in names.split()
}
ENVELOPES |= {
    "kimi_k3": replace(
        ENVELOPES["kimi_k3"], before="<|open|>response<|sep|><|close|>response<|sep|>"
    ),
    "llama3_json": _LLAMA,
    "llama4_json": _LLAMA,
    "openai": Envelope(
        before="<|start|>assistant",
        call="<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>",
        # A call ends with a stop token, which the end of the grammar allows.
        separator="<|start|>assistant",
    ),
}
