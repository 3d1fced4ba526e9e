"""SpeculativeConfig: method and number of drafted tokens."""

from __future__ import annotations

from typing import ClassVar

from vllm_lite.config.absent import rows
from vllm_lite.config.option import JsonOption, Option, config, option
from vllm_lite.errors import UsageError

# vLLM's length of an n-gram where none is given.
_DEFAULT_LOOKUP = 5


@config
class SpeculativeConfig:
    """Drafts, which the model verifies several at a time."""

    ROWS: ClassVar[tuple[Option, ...]] = rows("--speculative-config")

    JSON_OPTION: ClassVar[JsonOption] = JsonOption(
        "speculative_config",
        "JSON: method and number of drafts. They do not change the text.",
        aliases=("-sc",),
        group="VllmConfig",
    )

    method: str | None = option(
        None,
        "Draft method; ngram: the tokens that followed the last tokens where they occurred before.",
        works=(None, "ngram"),
        remedy="use ngram, or leave it out",
        alone="spec_method",
        group="VllmConfig",
    )
    num_speculative_tokens: int | None = option(
        None,
        "Number of tokens to draft.",
        ge=1,
        alone="spec_tokens",
        group="VllmConfig",
    )
    prompt_lookup_max: int | None = option(
        None,
        "Most last tokens to look for; without either bound 5, with one the other is the same.",
        ge=1,
    )
    prompt_lookup_min: int | None = option(
        None,
        "Fewest last tokens to look for.",
        ge=1,
    )

    def __post_init__(self) -> None:
        given = (self.num_speculative_tokens, self.prompt_lookup_max, self.prompt_lookup_min)
        if self.method is None:
            if any(value is not None for value in given):
                raise UsageError("--speculative-config has no method; set it to ngram")
            return
        if self.num_speculative_tokens is None:
            raise UsageError(
                "--speculative-config has no num_speculative_tokens; set it to the number of "
                "tokens to draft, such as 4"
            )
        low, high = self.lookup
        if low > high:
            raise UsageError(
                f"--speculative-config.prompt_lookup_min {low} is more than prompt_lookup_max "
                f"{high}; lower it"
            )

    @property
    def num_drafts(self) -> int:
        """Most tokens drafted for a request in a step; 0 where none are."""
        return self.num_speculative_tokens or 0 if self.method is not None else 0

    @property
    def lookup(self) -> tuple[int, int]:
        """Fewest and most last tokens to look for."""
        low, high = self.prompt_lookup_min, self.prompt_lookup_max
        return low or high or _DEFAULT_LOOKUP, high or low or _DEFAULT_LOOKUP
