"""Names to formats: the built-in ones and those that an operator's plugin or tokenizer adds.

Knows no request. Invariant: a name, once registered, is one format for the life of the process.
"""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vllm_lite.config.json_file import read_json
from vllm_lite.config.sources import tokenizer_path
from vllm_lite.errors import CheckpointError, RequestError, UsageError
from vllm_lite.parsers.reasoning import ReasoningFormat, ReasoningMarkers
from vllm_lite.parsers.reasoning_formats import REASONING_FORMATS, hunyuan_reasoning
from vllm_lite.parsers.response_template import template_reasoning, template_tools
from vllm_lite.parsers.tools.formats import TOOL_FORMATS, hunyuan
from vllm_lite.parsers.tools.reader import ToolFormat

if TYPE_CHECKING:
    from vllm_lite.config.vllm import VllmConfig

FROM_TOKENIZER = "hf"  # the parser described by the tokenizer
# Some HY checkpoints append one suffix to all tag names, as in `<tool_calls:6124c78e>`.
_HY_TOKEN = re.compile(r"<(?:think|tool_calls|tool_call|arg_key|arg_value)(:[^\s<>]+)>")
_HY_PARSERS = ("hy_v3", "hy_v4")
# Values of template arguments that a parser can read, the default first.
_TEMPLATE_CHOICES = {
    "k2_horizon": {
        "reasoning_effort": ("high", "medium", "low"),
        "tool_call_format": ("xml", "xml_typed", "json"),
    }
}
_loaded: set[Path] = set()  # plugins
_TAIL = 256  # characters at a prompt's end in which a reasoning marker is looked for


def tool_parser_names() -> tuple[str, ...]:
    """The names that `--tool-call-parser` accepts, sorted."""
    return tuple(sorted({*TOOL_FORMATS, FROM_TOKENIZER}))


def reasoning_parser_names() -> tuple[str, ...]:
    """The names that `--reasoning-parser` accepts, sorted."""
    return tuple(sorted({*REASONING_FORMATS, FROM_TOKENIZER}))


def needs_tokenizer(name: str | None) -> bool:
    """Whether `name` is a parser that only the served model's tokenizer completes."""
    return name in (FROM_TOKENIZER, *_HY_PARSERS)


def bind_tokenizer(
    tool_parser: str | None,
    reasoning_parser: str | None,
    *,
    tokens: Iterable[str] = (),
    response_template: object = None,
) -> None:
    """Complete the two parsers by what the served model's tokenizer says; called once, at start.

    `tokens` are its added tokens, `response_template` is that of its configuration. Raises
    UsageError where a name is not known, or `hf` finds no template that it can read.
    """
    if tool_parser == FROM_TOKENIZER:
        TOOL_FORMATS[FROM_TOKENIZER] = template_tools(response_template)
    if reasoning_parser == FROM_TOKENIZER:
        REASONING_FORMATS[FROM_TOKENIZER] = template_reasoning(response_template)
    suffix = next((found.group(1) for t in tokens if (found := _HY_TOKEN.fullmatch(t))), None)
    if suffix and tool_parser in _HY_PARSERS:
        TOOL_FORMATS[tool_parser] = hunyuan(suffix)
    if suffix and reasoning_parser in _HY_PARSERS:
        REASONING_FORMATS[reasoning_parser] = hunyuan_reasoning(suffix)
    if tool_parser is not None:
        tool_format(tool_parser)
    if reasoning_parser is not None:
        reasoning_format(reasoning_parser)


def tool_format(name: str) -> ToolFormat:
    """The format behind `name`; raises UsageError if it is unknown."""
    if name not in TOOL_FORMATS:
        raise _unknown("--tool-call-parser", name, tool_parser_names())
    return TOOL_FORMATS[name]


def reasoning_format(name: str) -> ReasoningFormat:
    """The format behind `name`; raises UsageError if it is unknown."""
    if name not in REASONING_FORMATS:
        raise _unknown("--reasoning-parser", name, reasoning_parser_names())
    return REASONING_FORMATS[name]


def check_template_kwargs(names: Iterable[str | None], given: Mapping[str, object]) -> None:
    """Raise RequestError where an argument of the template has a value that no parser can read."""
    for name in names:
        for argument, choices in _TEMPLATE_CHOICES.get(name or "", {}).items():
            if given.get(argument, choices[0]) not in choices:
                field = f"chat_template_kwargs.{argument}"
                raise RequestError(f"{field} must be one of {', '.join(choices)}", field)


def register_tool_parser(name: str, tool_format: ToolFormat) -> None:
    """Make `name` a tool parser; for plugins. Raises UsageError where the name is taken."""
    if name in TOOL_FORMATS:
        raise UsageError(f"tool parser {name} exists already; give the plugin's another name")
    TOOL_FORMATS[name] = tool_format


def register_reasoning_parser(name: str, reasoning_format: ReasoningFormat) -> None:
    """Make `name` a reasoning parser; for plugins. Raises UsageError where the name is taken."""
    if name in REASONING_FORMATS:
        raise UsageError(f"reasoning parser {name} exists already; give the plugin's another name")
    REASONING_FORMATS[name] = reasoning_format


def load_plugin(path: str) -> None:
    """Run the Python file at `path`, which the operator named, so that it registers parsers.

    Once is enough: a second call does nothing. Raises UsageError where it is not there or fails.
    """
    file = Path(path).resolve()
    if file in _loaded:
        return
    if not file.is_file():
        raise UsageError(f"parser plugin {path} is not a file; give the path of a Python file")
    spec = importlib.util.spec_from_file_location(f"vllm_lite_plugin_{file.stem}", file)
    if spec is None or spec.loader is None:
        raise UsageError(f"parser plugin {path} is no Python file; its name must end in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except UsageError:
        raise
    except Exception as error:
        kind = type(error).__name__
        raise UsageError(f"parser plugin {path} failed with {kind}: {error}") from error
    _loaded.add(file)


def needs_special_tokens(tool_parser: str | None, reasoning_parser: str | None) -> bool:
    """Whether the text must keep special tokens for these parsers to see their markers."""
    tool = TOOL_FORMATS.get(tool_parser or "")
    reasoning = REASONING_FORMATS.get(reasoning_parser or "")
    return any(getattr(it, "needs_special_tokens", True) for it in (tool, reasoning) if it)


def reasoning_markers(name: str) -> ReasoningMarkers | None:
    """The strings around reasoning; None where a format splits none off."""
    found = reasoning_format(name)
    return ReasoningMarkers(found.starts[0], found.ends[0]) if found.starts else None


def prompt_ends_in_reasoning(name: str, prompt: str) -> bool | None:
    """Whether the prompt's template has opened reasoning, or opened and closed it, at its end.

    None where the prompt's end says neither.
    """
    found = reasoning_format(name)
    tail = prompt[-_TAIL:].rstrip()
    if any(tail.endswith(start.rstrip()) for start in found.starts):
        return True
    return False if any(tail.endswith(end.rstrip()) for end in found.ends) else None


def _unknown(flag: str, name: str, names: tuple[str, ...]) -> UsageError:
    return UsageError(f"{flag} {name} is not known; choose one of {', '.join(names)}")


def bind_parsers(
    config: VllmConfig, tool_parser: str | None = None, tool_parser_plugin: str | None = None
) -> None:
    """Make the configured reasoning parser and `tool_parser` ready.

    Raises UsageError for a plugin that fails, a name that is not known, and for `hf` where the
    tokenizer describes no format that can be read.
    """
    options = config.structured_outputs
    for plugin in (tool_parser_plugin, options.reasoning_parser_plugin):
        if plugin:
            load_plugin(plugin)
    reasoning_parser = options.reasoning_parser or None
    _check_forced_end(config)
    facts: dict[str, Any] = {}
    if needs_tokenizer(tool_parser) or needs_tokenizer(reasoning_parser):
        facts = _tokenizer_facts(tokenizer_path(config))
    bind_tokenizer(tool_parser, reasoning_parser, **facts)


def _check_forced_end(config: VllmConfig) -> None:
    """Raise UsageError where what ends reasoning by force would not end it to the parser."""
    name, forced = config.structured_outputs.reasoning_parser, config.reasoning.reasoning_end_str
    if not forced:
        return
    markers = reasoning_markers(name) if name else None
    if markers is None:
        raise UsageError(
            "--reasoning-config.reasoning_end_str needs a --reasoning-parser that marks where "
            "reasoning ends"
        )
    if markers.end not in forced:
        raise UsageError(
            f"--reasoning-config.reasoning_end_str {forced!r} does not hold {markers.end!r}, the "
            f"marker that ends reasoning for --reasoning-parser {name}; append it"
        )


def _tokenizer_facts(path: Path) -> dict[str, Any]:
    """The added tokens and the response template of a tokenizer's directory."""
    config = _read_object(path / "tokenizer_config.json")
    added = config.get("added_tokens_decoder")
    entries = list(added.values()) if isinstance(added, dict) else []
    listed = _read_object(path / "tokenizer.json").get("added_tokens")
    entries += listed if isinstance(listed, list) else []
    tokens = [entry.get("content") for entry in entries if isinstance(entry, dict)]
    return {
        "tokens": [token for token in tokens if isinstance(token, str)],
        "response_template": config.get("response_template"),
    }


def _read_object(path: Path) -> dict[str, Any]:
    try:
        return read_json(path)
    except CheckpointError:
        return {}  # loading the tokenizer reports it
