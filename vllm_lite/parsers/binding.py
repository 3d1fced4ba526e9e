"""The parsers of one process made ready: plugins loaded, names checked, `hf` read.

Each process that looks a parser up calls this first. Reads nothing of a model but the facts in
its tokenizer's configuration, and those only for the parsers that need them.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from vllm_lite.config.json_file import read_json
from vllm_lite.config.sources import tokenizer_path
from vllm_lite.errors import CheckpointError, UsageError
from vllm_lite.parsers import registry

if TYPE_CHECKING:
    from vllm_lite.config.vllm import VllmConfig


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
            registry.load_plugin(plugin)
    reasoning_parser = options.reasoning_parser or None
    _check_forced_end(config)
    facts: dict[str, Any] = {}
    if registry.needs_tokenizer(tool_parser) or registry.needs_tokenizer(reasoning_parser):
        facts = _tokenizer_facts(tokenizer_path(config))
    registry.bind_tokenizer(tool_parser, reasoning_parser, **facts)


def _check_forced_end(config: VllmConfig) -> None:
    """Raise UsageError where what ends reasoning by force would not end it to the parser."""
    name, forced = config.structured_outputs.reasoning_parser, config.reasoning.reasoning_end_str
    if not forced:
        return
    markers = registry.reasoning_markers(name) if name else None
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
        return {}  # whether they can be read at all is for the tokenizer to say
