"""docs/cli.md, made from the options: `python -m tests.unit.cli.make_docs > docs/cli.md`.

Descriptions come from the options; this module adds the text between them.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from vllm_lite import envs
from vllm_lite.bench.options.load import (
    LatencyOptions,
    ServeOptions,
    StartupOptions,
    ThroughputOptions,
)
from vllm_lite.bench.options.sweep import SweepOptions
from vllm_lite.cli.bench import BENCHMARKS, SWEEPS
from vllm_lite.cli.chat import ChatOptions, DialogueOptions
from vllm_lite.cli.complete import CompleteOptions
from vllm_lite.cli.detached.stop import StopOptions
from vllm_lite.cli.main import COMMANDS
from vllm_lite.cli.models.cache import CacheOptions
from vllm_lite.cli.models.pull import PullOptions
from vllm_lite.cli.models.show import ShowOptions
from vllm_lite.config.batch import BatchConfig
from vllm_lite.config.options.help import default_of, groups_of, remark_on
from vllm_lite.config.options.option import Level, Option, option_table
from vllm_lite.config.server import ReplyConfig, ServerConfig
from vllm_lite.config.vllm import VllmConfig

# What the tables call a level, and what that means.
_STATES: dict[Level, tuple[str, str]] = {
    "full": ("works", "It works."),
    "partial": ("in part", "Some of its values or keys work; others are refused."),
    "idle": ("idle", "It is accepted without effect, with a warning."),
    "absent": ("no", "It is refused with exit code 2 unless it has its default value."),
    "deprecated": ("old", "It warns, and sets the option that replaced it, if any."),
}

_BENCHMARK_OPTIONS: dict[str, type] = {
    "latency": LatencyOptions,
    "throughput": ThroughputOptions,
    "startup": StartupOptions,
    "serve": ServeOptions,
}

_OWN_OPTIONS: dict[str, type] = {
    "chat": ChatOptions,
    "complete": CompleteOptions,
    "run": DialogueOptions,
    "stop": StopOptions,
    "pull": PullOptions,
    "list": CacheOptions,
    "show": ShowOptions,
    "rm": CacheOptions,
}

_INTRODUCTION = """\
# The command line

Made from the options themselves by `python -m tests.unit.cli.make_docs > docs/cli.md`.

The names are vLLM's. `vllm-lite COMMAND --help` lists a command's groups, `--help=GROUP` a
group's options, `--help=WORD` those whose name holds a word, `--help=all` every one that works,
`--help=page` the same a screen at a time, `--help=absent` those that are absent, retired or idle.
`vllm-lite --print-completion bash` (or `zsh`, `fish`) prints a script that completes all of it.
`LLM(...)` and `EngineArgs(...)` take the engine's
options by their names with underscores, and answer as the command line does.

## Syntax

- Dashes and underscores are equal: `--max_num_seqs 4`. Names may be abbreviated if unique.
- The last repetition wins, with a warning. The command line overrides the `--config` file.
- A switch has two forms, `--x` and `--no-x`, and takes no value.
- `None`, or an empty text, unsets an optional value.
- Numbers of tokens and bytes take `k m g t` for powers of 1000 (`25.6k`) and `K M G T` for powers
  of 1024 (`4K`).
- A JSON option takes an object (`--opt '{"a": {"b": 1}}'`) or its keys (`--opt.a.b 1`, or
  `--opt.a.b=1`); `--opt.list+ x,y` appends to a list. Keys replace a whole object given too.
- `-O3`, `-O=3` and `-O 3` are `--optimization-level 3`; `-O.key` and `-O {...}` are
  `--compilation-config`.
- `--config FILE` reads options from YAML: `key: value`, lists, nested objects, `true` and `false`;
  `model: NAME` names the model.
- `vllm-lite` is also `python -m vllm_lite`. `python -m vllm_lite.entrypoints.openai.api_server
  --model MODEL` is `vllm-lite serve MODEL`, and deprecated.

Exit codes: 0 done; 1 an invalid value or a failed engine, in one line; 2 words
that cannot be parsed, or an option that this build lacks; 130 interrupted.
"""


def page() -> str:
    parts = [_INTRODUCTION, _support(), _engine(), _front_end(), *_commands(), _environment()]
    return "\n".join(parts)


def _support() -> str:
    served = _table_of(VllmConfig, ServerConfig)
    counts = Counter(entry.level for entry in served)
    lines = ["## Support in this build", ""]
    lines += _table(
        ("state", "what it means", "options of `serve`"),
        [(word, text, str(counts[level])) for level, (word, text) in _STATES.items()],
    )
    return "\n".join(lines) + "\n"


def _engine() -> str:
    return (
        "## Engine options\n\n"
        "Of `serve`, `run-batch`, `bench latency`, `bench throughput`, `bench startup`, `LLM` and\n"
        "`EngineArgs`.\n\n" + _groups(_table_of(VllmConfig), (VllmConfig,), "###")
    )


def _front_end() -> str:
    replies = option_table(ReplyConfig)
    others = [entry for entry in _table_of(ServerConfig) if entry.name not in replies]
    return (
        "## serve\n\nThe engine's options, those of replies, which `run-batch` has too:\n\n"
        + _groups(list(replies.values()), (ReplyConfig,), "###")
        + "\nand those of the server:\n\n"
        + _groups(others, (ServerConfig,), "###")
    )


def _commands() -> Iterator[str]:
    yield _command("run-batch", "Besides the engine's options and those of replies:", BatchConfig)
    for name, cls in _OWN_OPTIONS.items():
        yield _command(name, COMMANDS[name][1], cls)
    for name, cls in _BENCHMARK_OPTIONS.items():
        yield _command(f"bench {name}", BENCHMARKS[name], cls)
    yield _command("bench sweep serve", SWEEPS["serve"], SweepOptions)


def _command(name: str, about: str, cls: type) -> str:
    head = f"## {name}\n\n" + (f"{about}\n\n" if about else "")
    return head + _groups(_table_of(cls), (cls,), "###")


def _environment() -> str:
    lines = ["## Environment variables", ""]
    lines += _table(
        ("variable", "what it does"),
        [(f"`{name}`", envs.help_of(name)) for name in envs.VARIABLES],
    )
    lines += ["", "Variables of vLLM without effect here; setting one warns:", ""]
    lines += _table(
        ("variable", "because"), [(f"`{name}`", f"{why}.") for name, why in envs.IDLE.items()]
    )
    granted = " and ".join(f"`{name}`" for name in envs.GRANTED)
    lines += ["", f"{granted} have no effect: no usage data is ever sent."]
    lines += ["", "Any other `VLLM_` variable is unknown, and a warning says so.", ""]
    return "\n".join(lines)


def _table_of(*classes: type) -> list[Option]:
    return [entry for cls in classes for entry in option_table(cls).values()]


def _groups(entries: Sequence[Option], classes: Sequence[type], mark: str) -> str:
    texts = []
    for name, about in groups_of(entries, classes).items():
        rows = [row for entry in entries if entry.group == name for row in _rows(entry)]
        head = (f"{mark} {name}", "", about, "")
        texts.append("\n".join((*head, *_table(("option", "default", "state", ""), rows))) + "\n")
    return "\n".join(texts)


def _rows(entry: Option) -> Iterator[tuple[str, ...]]:
    names = [entry.flag, *entry.rules.get("aliases", ())]
    if entry.kind.types == (bool,):
        names[1:1] = [f"--no-{entry.flag[2:]}"]
    text = f"{entry.help}{_choices(entry)}{'' if entry.keys else remark_on(entry)}".lstrip()
    state, _ = _STATES[entry.level]
    yield ", ".join(f"`{name}`" for name in names), _default(entry), state, text
    for key in entry.keys:
        yield from _rows(key)


def _choices(entry: Option) -> str:
    if not entry.choices or entry.rules.get("bare"):
        return ""
    works = entry.rules.get("works", entry.choices) if entry.level == "partial" else entry.choices
    shown = ", ".join(f"`{choice}`" for choice in entry.choices if choice in works)
    refused = ", ".join(f"`{choice}`" for choice in entry.choices if choice not in works)
    return f" One of {shown}." + (f" Not in this build: {refused}." if refused else "")


def _default(entry: Option) -> str:
    text = default_of(entry)
    return text if "auto" in entry.rules or text == "none" else f"`{text}`"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [head, ["---"] * len(head), *rows]
    return ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines]


if __name__ == "__main__":
    sys.stdout.write(page())
