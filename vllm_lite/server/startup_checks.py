"""Server options that are checked before a model loads: parsers, templates and middleware."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Sequence
from dataclasses import dataclass

from vllm_lite.config.server import ReplyConfig
from vllm_lite.config.vllm import VllmConfig
from vllm_lite.errors import UsageError
from vllm_lite.parsers.registry import bind_parsers


def load_middleware(paths: Sequence[str]) -> list[object]:
    """The classes and async functions at `paths`, in order; raises UsageError."""
    return [_load(path) for path in paths]


def _load(path: str) -> object:
    module_name, _, name = path.rpartition(".")
    if not module_name:
        raise UsageError(f"--middleware {path}: give the import path, as in package.module.Name")
    try:
        found = getattr(importlib.import_module(module_name), name)
    except (ImportError, AttributeError) as error:
        raise UsageError(
            f"--middleware {path} cannot be imported ({error}); check the path and PYTHONPATH"
        ) from None
    if not (inspect.isclass(found) or inspect.iscoroutinefunction(found)):
        raise UsageError(f"--middleware {path} is neither a class nor an async function")
    return found


@dataclass(frozen=True, slots=True)
class ParserNames:
    """The names of a tool parser and a reasoning parser; None for no parser."""

    tool: str | None
    reasoning: str | None


def choose_parsers(config: VllmConfig, reply_config: ReplyConfig) -> ParserNames:
    """Load the parsers that the options name; raises UsageError."""
    tool = reply_config.tool_call_parser or None
    bind_parsers(config, tool, reply_config.tool_parser_plugin or None)
    return ParserNames(tool, config.structured_outputs.reasoning_parser or None)


def check_reply_options(config: VllmConfig, reply_config: ReplyConfig) -> None:
    """Raise UsageError for unusable parsers or templates, before a model loads."""
    choose_parsers(config, reply_config)
    if reply_config.chat_template is not None:
        # Imported here: without a template the engine core starts before Jinja is imported.
        from vllm_lite.tokenizer.chat_template import load_chat_template

        load_chat_template(reply_config.chat_template)
