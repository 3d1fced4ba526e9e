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
its reasoning. Both read only text: streamed or whole, an answer gives the same events, wherever the
stream was cut.

## The rules, for every format

- Reasoning is separated first, then calls from prose. Reasoning that was opened lasts until it is
  closed, or until the answer ends.
- Text becomes a call once its name has been read and its arguments begin. Text that does not fit
  the format is content, without the format's marks, which are never shown.
- Arguments are sent while they arrive, spaced as by `json.dumps`. Bare values get the type that the
  tool's schema allows (`float`, `bool`, `int`, `dict` and `list` are understood); a value that fits
  none is read as JSON, or else is a string.
- If `max_tokens` cuts the arguments, they stay an unfinished JSON object, which no client can
  mistake for a whole one. If it cuts a later call before its arguments, that call is dropped.
- If arguments are malformed, repeat a key, or the model ends its answer inside them, their JSON is
  closed there and the rest of the call is content. All other arguments are whole JSON objects. A
  broken or cut call alone does not make the finish reason `tool_calls`.
- Prose before, between and after calls is kept; whitespace that only separates calls is not.
- A format without marks (`llama3_json`, `pythonic`, `xlam`) finds a call only where the name of
  one of the request's tools stands; `llama3_json` and `xlam` need arguments too.
- In the formats of GLM, MiniMax M2, MiniCPM5 and dots an unknown name is no call: its text is
  content. Other formats return it as written.
- `parallel_tool_calls: false` keeps the first call.
- `tool_choice` `required` or a function always constrains the answer to the tools' schemas: in the
  model's own format if the last column says so and the format can express the schemas exactly,
  else as plain JSON. With `auto`, `strict` tools are constrained in the model's own format; a
  schema that it cannot express exactly is a 400.

Nothing is evaluated, time is linear in the length of the text, and at most the beginning of a mark
is held back, or a value whose type only its end decides.
"""

PLUGINS = """\
## Plugins

`--tool-parser-plugin FILE` and `--reasoning-parser-plugin FILE` run your Python file at
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
`PythonicTools` and `TaggedReasoning`; their fields are in their docstrings. Any other format is
a class with the fields `openers`, `wrappers` and `id_style` and one generator:

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

A reader sees characters, never chunks: `yield from` waits where more text is needed. What it passes
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
