"""StructuredOutputsConfig: constrained output, and reasoning apart from the answer.

What a request asks for is in its StructuredOutputsParams.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from vllm_lite.config.option import JsonOption, config, option


@config
class StructuredOutputsConfig:
    """Constrained output, and reasoning apart from the answer."""

    JSON_OPTION: ClassVar[JsonOption] = JsonOption(
        "structured_outputs_config",
        "JSON: what compiles grammars, and what JSON may hold beside its schema.",
    )

    backend: Literal["auto", "xgrammar", "guidance", "outlines", "lm-format-enforcer"] = option(
        "auto",
        "What compiles grammars; auto: xgrammar, and guidance for what that cannot enforce.",
        works=("auto", "xgrammar", "guidance"),
        remedy="use auto: it enforces all that the others do",
    )
    disable_fallback: bool = option(
        False,
        "Let auto be xgrammar alone: refuse what it cannot enforce.",
    )
    disable_any_whitespace: bool = option(
        False,
        "Allow no free whitespace in JSON.",
    )
    disable_additional_properties: bool = option(
        False,
        "Allow no keys in JSON that its schema does not name.",
    )
    enable_in_reasoning: bool = option(
        False,
        "Constrain the reasoning too.",
    )
    reasoning_parser: str = option(
        "",
        "What tells reasoning from the answer.",
        alone="reasoning_parser",
    )
    reasoning_parser_plugin: str = option(
        "",
        "Python file with further reasoning parsers.",
        alone="reasoning_parser_plugin",
    )
