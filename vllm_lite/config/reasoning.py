"""ReasoningConfig: the texts that open and close a model's reasoning."""

from __future__ import annotations

from typing import ClassVar

from vllm_lite.config.option import JsonOption, config, option


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
