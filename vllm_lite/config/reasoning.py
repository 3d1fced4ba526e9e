"""ReasoningConfig: the texts that open and close a model's reasoning; finds no token."""

from __future__ import annotations

from typing import ClassVar

from vllm_lite.config.option import JsonOption, config, option


@config
class ReasoningConfig:
    """The texts around reasoning."""

    JSON_OPTION: ClassVar[JsonOption] = JsonOption(
        "reasoning_config", "JSON: the texts around reasoning, where a thinking budget counts."
    )

    reasoning_parser: str = option(
        "", "What tells reasoning from the answer, where --reasoning-parser does not say."
    )
    reasoning_start_str: str = option(
        "", "The text that reasoning begins with, in place of the parser's."
    )
    reasoning_end_str: str = option(
        "",
        "The text that is forced when a request's thinking budget is spent: the parser's own mark, "
        "and whatever shall stand before or after it.",
    )
