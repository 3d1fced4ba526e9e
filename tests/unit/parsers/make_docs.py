"""docs/parsers.md, made from the registry.

`python -m tests.unit.parsers.make_docs > docs/parsers.md`
"""

from __future__ import annotations

from tests.unit.parsers.writers import WRITERS
from vllm_lite.parsers import registry
from vllm_lite.parsers.channels import ChannelReasoning
from vllm_lite.parsers.reasoning import TaggedReasoning
from vllm_lite.parsers.reasoning_formats import SWITCHES
from vllm_lite.parsers.tools.envelopes import ENVELOPES

IDS = {"kimi_k2": "functions.get_weather:0", "mistral": "9 letters", "call": "call_…"}
CALL = [("get_weather", {"city": "Rome", "days": 2})]

INTRODUCTION = """\
# Tool calls and reasoning

Made by `python -m tests.unit.parsers.make_docs > docs/parsers.md`; the tables are those of the
registry.

`--tool-call-parser NAME` says how the model writes calls, `--reasoning-parser NAME` how it marks
its reasoning. Both read text and nothing else: a streamed answer and a whole one are the same
events, and where the stream was cut never matters.

## The rules, for every format

- Reasoning comes first, then calls are told from prose. What was opened as reasoning stays
  reasoning until it is closed, also where the answer ends first.
- Text becomes a call once its name has been read and its arguments begin. What does not fit the
  format is content, less the format's marks, which are never shown.
- Arguments are handed on while they arrive, in the spacing of `json.dumps`. Values that are bare
  text get the type that the tool's schema allows (`float`, `bool`, `int`, `dict` and `list` mean
  what they say); what fits none is what it is in JSON, or else a string.
- Where the text ends within arguments (`max_tokens`), they stay what there was: the beginning of a
  JSON object, which no client can mistake for a whole one. If it ends before the arguments of a
  call after the first, that call is dropped.
- Where arguments stop making sense, an object gets a key twice, or the model itself ends its answer
  within them, their JSON is closed where it stands and the rest of the call is content. All other
  arguments are whole JSON objects. All of this is the same streamed and whole, and a broken or cut
  call alone does not make the finish reason `tool_calls`.
- Prose before, between and after calls is kept; white space alone around calls is not.
- A format without a mark of its own (`llama3_json`, `pythonic`, `xlam`) takes something for a call
  only if it has the name of a tool of the request; `llama3_json` and `xlam` need arguments, too.
- The name of no tool of the request makes no call in the formats of GLM, MiniMax M2, MiniCPM5 and
  dots: its text is content. Elsewhere it is returned as it was written.
- `parallel_tool_calls: false` keeps the first call.
- `tool_choice` `required` or a function always constrains the answer to the tools' schemas: in the
  model's own format where the last column says so and the format can say the schemas exactly, and
  as plain JSON otherwise. With `auto`, tools that are `strict` constrain calls in formats of their
  own; what such a format cannot say exactly is a 400.

Nothing is ever evaluated, time grows with the length of the text alone, and what is held back is
at most the beginning of a mark, or a value that only its end can type.
"""

PLUGINS = """\
## Plugins

`--tool-parser-plugin FILE` and `--reasoning-parser-plugin FILE` run a Python file of yours at
start, before names are looked up. It registers parsers; one file may serve both options.

```python
from vllm_lite.parsers.plugin import (
    JsonTools,
    TaggedReasoning,
    register_reasoning_parser,
    register_tool_parser,
)

register_tool_parser("mine", JsonTools(openers=("<call>",), closers=("</call>",)))
register_reasoning_parser("mine", TaggedReasoning(starts=("<why>",), ends=("</why>",)))
```

The formats to choose from are `JsonTools`, `NamedTools` (a name, then JSON), `XmlTools`,
`PythonicTools` and `TaggedReasoning`; their fields are in their docstrings. A format that is none
of these is a class with the fields `openers`, `wrappers` and `id_style` and one generator:

```python
from vllm_lite.parsers.plugin import Malformed, quoted, register_tool_parser


class LineTools:  # `!name text` on a line of its own is a call with {"line": "text"}
    openers, wrappers, id_style = ("\\n!",), (), ""

    def read_calls(self, opener, calls):
        name = yield from calls.source.name((" ",))
        if name not in calls.tools:
            raise Malformed  # so far it is content
        calls.begin(name)  # from here on it is a call
        calls.put('{"line": "')
        yield from calls.source.until(("\\n",), lambda text: calls.put(quoted(text)))
        calls.put('"}')
        calls.end()


register_tool_parser("lines", LineTools())
```

A reader sees characters, never pieces: `yield from` waits where more text is needed. What it hands
to `calls.put` must be JSON when joined. Forced calls of a plugin's parser are plain JSON.
"""


def code(text: str) -> str:
    """`text` in a cell of a table."""
    return "`` " + text.strip().replace("\n", "⏎").replace("|", "\\|") + " ``"


def grouped(rows: dict[str, tuple[str, ...]]) -> list[str]:
    """The rows of a table, names with the same cells together."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for name, cells in rows.items():
        groups.setdefault(cells, []).append(f"`{name}`")
    return [f"| {' '.join(names)} | {' | '.join(cells)} |" for cells, names in groups.items()]


def tool_rows() -> list[str]:
    rows = {}
    for name in registry.tool_parser_names():
        if name == "hf":
            continue
        own = "own format" if name in ENVELOPES else "JSON"
        kind = IDS.get(registry.tool_format(name).id_style, "")
        rows[name] = (code(WRITERS[name](CALL)), kind, own)
    return grouped(rows)


def reasoning_rows() -> list[str]:
    rows = {}
    for name in registry.reasoning_parser_names():
        if name == "hf":
            continue
        found = registry.reasoning_format(name)
        notes = []
        if isinstance(found, TaggedReasoning):
            if found.is_bare:
                notes.append("begins without its mark too")
            if found.is_anywhere:
                notes.append("may come back")
        elif isinstance(found, ChannelReasoning):
            notes.append("messages to the model itself")
        else:
            notes.append("nothing is split off; `<think>` is given back to the content")
        if name in SWITCHES:
            switch = SWITCHES[name]
            said = f"the template's `{'` or `'.join(switch.arguments)}` says"
            notes.append(f"off where {said} so" if switch.is_on_unsaid else f"off unless {said} on")
        marks = [code(part[0]) if part else "" for part in (found.starts, found.ends)]
        rows[name] = (*marks, "; ".join(notes))
    return grouped(rows)


def page() -> str:
    """The whole page."""
    return "\n".join(
        [
            INTRODUCTION,
            "## Tool parsers",
            "",
            "⏎ is a line break. Ids are the API's own kind where none is given.",
            "",
            "| name | a call | id | forced as |",
            "| --- | --- | --- | --- |",
            *tool_rows(),
            "| `hf` | what the tokenizer's `response_template` describes: literal marks around JSON"
            " or tags; refused at start otherwise | | JSON |",
            "",
            "## Reasoning parsers",
            "",
            "| name | begins | ends | |",
            "| --- | --- | --- | --- |",
            *reasoning_rows(),
            "| `hf` | what the tokenizer's `response_template` describes | | |",
            "",
            PLUGINS,
        ]
    )


if __name__ == "__main__":
    print(page(), end="")
