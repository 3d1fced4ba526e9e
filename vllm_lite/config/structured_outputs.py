"""StructuredOutputsConfig: constrained output, and reasoning apart from the answer.

A request's own constraint is its StructuredOutputsParams.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from vllm_lite.config.options.option import JsonOption, config, option


@config
class StructuredOutputsConfig:
    """Constrained output, and reasoning apart from the answer."""

    JSON_OPTION: ClassVar[JsonOption] = JsonOption(
        "structured_outputs_config",
        "JSON: the grammar backend and limits of JSON output.",
    )

    backend: Literal["auto", "xgrammar", "guidance", "outlines", "lm-format-enforcer"] = option(
        "auto",
        "Grammar backend; auto: xgrammar, and guidance for what xgrammar cannot enforce.",
        works=("auto", "xgrammar", "guidance"),
        remedy="use auto: it enforces all that the others do",
    )
    disable_fallback: bool = option(
        False,
        "With auto, use only xgrammar: refuse what it cannot enforce.",
    )
    disable_any_whitespace: bool = option(
        False,
        "Allow no free whitespace in JSON.",
    )
    disable_additional_properties: bool = option(
        False,
        "Allow only keys that the JSON schema names.",
    )
    enable_in_reasoning: bool = option(
        False,
        "Constrain the reasoning too.",
    )
    reasoning_parser: str = option(
        "",
        "Parser that separates reasoning from the answer; for gpt-oss openai_gptoss unless set.",
        alone="reasoning_parser",
    )
    reasoning_parser_plugin: str = option(
        "",
        "Python file with further reasoning parsers.",
        alone="reasoning_parser_plugin",
    )


@config
class ReasoningConfig:
    """The texts around reasoning."""

    JSON_OPTION: ClassVar[JsonOption] = JsonOption(
        "reasoning_config", "JSON: the texts around reasoning, for thinking budgets."
    )

    reasoning_parser: str = option("", "Parser of reasoning, if --reasoning-parser is not given.")
    reasoning_start_str: str = option(
        "", "The text that reasoning begins with, in place of the parser's."
    )
    reasoning_end_str: str = option(
        "",
        "The text forced when a request's thinking budget is spent: the parser's end mark, "
        "with any text before or after it.",
    )
