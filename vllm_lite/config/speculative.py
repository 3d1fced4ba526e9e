"""SpeculativeConfig: method and number of drafted tokens."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from vllm_lite.config.absent import rows
from vllm_lite.config.model import LoadConfig
from vllm_lite.config.option import JsonOption, Option, config, option, options
from vllm_lite.config.values import Json
from vllm_lite.errors import UsageError

# Methods that look for drafts in texts, and those that another model makes them by.
_OF_TEXTS = ("ngram", "ngram_gpu", "suffix")
_OF_MODELS = ("draft_model",)
# vLLM's length of an n-gram where none is given.
_DEFAULT_LOOKUP = 5
_MOST_DRAFTS = 64


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
        "Draft method. ngram (also ngram_gpu): the tokens that followed the last tokens where they "
        "occurred before in the text; suffix: those that followed most often, also in what earlier "
        "requests of the same key generated; draft_model: a smaller model's.",
        works=(None, *_OF_TEXTS, *_OF_MODELS),
        remedy="use suffix or ngram, or leave it out",
        alone="spec_method",
        group="VllmConfig",
    )
    model: str | None = option(
        None,
        "draft_model: the smaller model, as --model; its vocabulary must be the model's.",
        alone="spec_model",
        group="VllmConfig",
    )
    num_speculative_tokens: int | None = option(
        None,
        "Most tokens to draft for a request in a step; how many it is follows from what came true "
        "and what a step costs.",
        ge=1,
        le=_MOST_DRAFTS,
        alone="spec_tokens",
        group="VllmConfig",
    )
    num_speculative_tokens_per_batch_size: list[Any] | None = option(
        None,
        "Instead of that: [[fewest requests, most requests, tokens to draft], ...].",
    )
    disable_by_batch_size: int | None = option(
        None,
        "Nothing is drafted with more running requests than these.",
        deprecated="--speculative-config.num_speculative_tokens_per_batch_size",
        becomes=lambda value: {
            "speculative_config.num_speculative_tokens_per_batch_size": [[value + 1, 1 << 20, 0]]
        },
        ge=2,
    )
    rejection_sample_method: str = option(
        "standard",
        "A draft is kept if it equals the token that is sampled, so that text is that without "
        "drafts; standard and block are the same.",
        choices=("standard", "block", "synthetic"),
        works=("standard", "block"),
        remedy="use standard",
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
    quantization: str | None = option(
        None, "Of the draft model, as --quantization; default: its checkpoint's."
    )
    max_model_len: int | None = option(
        None, "Nothing is drafted beyond so many tokens; at most the draft model's own.", ge=1
    )
    revision: str | None = option(None, "Branch, tag or commit of a draft model of the hub.")
    draft_load_config: Json | None = option(
        None, "JSON of the draft model's options of loading, such as load_format."
    )
    draft_tensor_parallel_size: int | None = option(
        None, "Ranks that divide the draft model: as many as divide the model.", ge=1
    )
    draft_sample_method: Literal["greedy", "probabilistic"] = option(
        "greedy",
        "How the draft model chooses; what is accepted is what the model itself samples.",
        works=("greedy",),
        remedy="leave it out: the likeliest tokens are those most often accepted",
    )
    suffix_decoding_max_tree_depth: int = option(
        24, "suffix: most last tokens that are compared with earlier text.", ge=2, le=1024
    )
    suffix_decoding_max_cached_requests: int = option(
        10_000,
        "suffix: texts of earlier requests that are kept for each API key; 0 keeps none.",
        ge=0,
    )
    suffix_decoding_max_spec_factor: float = option(
        1.0, "suffix: drafts for each last token that occurred before.", gt=0
    )
    suffix_decoding_min_token_prob: float = option(
        0.1, "suffix: least share of the places at which the drafts followed.", ge=0, le=1
    )

    def __post_init__(self) -> None:
        given = (self.num_speculative_tokens, self.prompt_lookup_max, self.prompt_lookup_min)
        if self.method is None:
            if any(value is not None for value in given):
                raise UsageError("--speculative-config has no method; set it to suffix or ngram")
            return
        if self.num_speculative_tokens is None:
            raise UsageError(
                "--speculative-config has no num_speculative_tokens; set it to the number of "
                "tokens to draft, such as 4"
            )
        if self.method in _OF_MODELS and self.model is None:
            raise UsageError(
                f"--speculative-config.method {self.method} has no model; set "
                "--speculative-config.model to one with the same vocabulary"
            )
        known = [entry.name for entry in options(LoadConfig)]
        for name in self.draft_load_config or ():
            if name not in known:
                raise UsageError(
                    f"--speculative-config.draft_load_config has no key {name!r}; its keys are "
                    f"{', '.join(known)}"
                )
        for row in self.num_speculative_tokens_per_batch_size or ():
            is_row = isinstance(row, list) and len(row) == 3
            if not (is_row and all(type(n) is int and n >= 0 for n in row) and row[0] <= row[1]):
                raise UsageError(
                    "--speculative-config.num_speculative_tokens_per_batch_size has "
                    f"{row!r}, which is not [fewest requests, most requests, tokens to draft]"
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
    def reads_texts(self) -> bool:
        """Whether drafts are looked for in texts, rather than made by a model."""
        return self.method in _OF_TEXTS

    @property
    def lookup(self) -> tuple[int, int]:
        """Fewest and most last tokens to look for."""
        low, high = self.prompt_lookup_min, self.prompt_lookup_max
        return low or high or _DEFAULT_LOOKUP, high or low or _DEFAULT_LOOKUP
