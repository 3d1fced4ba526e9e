"""SpeculativeConfig: method and number of drafted tokens."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from vllm_lite.config.model import LoadConfig
from vllm_lite.config.options.absent import rows
from vllm_lite.config.options.option import JsonOption, Option, config, option, options
from vllm_lite.config.values import Json
from vllm_lite.errors import NotInBuildError, UsageError

# Methods that look for drafts in texts, and those that another model makes them by.
_OF_TEXTS = ("ngram", "ngram_gpu", "suffix")
OF_MODELS = ("draft_model", "eagle", "eagle3", "medusa", "mtp")
# vLLM's names of mtp, by the model that has it.
MTP_NAMES = (
    *("mtp", "deepseek_mtp", "ernie_mtp", "exaone_moe_mtp", "exaone4_5_mtp", "glm4_moe_mtp"),
    *("glm4_moe_lite_mtp", "glm5_next_mtp", "glm_ocr_mtp", "gemma4_mtp", "hy_v3_mtp", "hy_v4_mtp"),
    *("longcat_flash_mtp", "mimo_mtp", "mimo_v2_mtp", "minimax_m3_mtp", "nemotron_h_mtp"),
    *("pangu_ultra_moe_mtp", "qwen3_5_mtp", "qwen3_next_mtp", "qwen4_exp_mtp", "step3p5_mtp"),
    *("bailing_hybrid_mtp", "bailing_hybrid_v3_mtp", "dots3_note_mtp", "inkling_mtp"),
    "kimi_k3_mtp",
)
CUSTOM = "custom_class"
# Methods of vLLM that are not here, and why.
_ABSENT = {
    "mlp_speculator": "its heads read a state of their own that follows the sampled tokens",
    "dflash": "its model drafts a block of tokens at once, each seeing the others",
    "dspark": "its model drafts a block of tokens at once, each seeing the others",
    "extract_hidden_states": "it drafts nothing, but writes hidden states for training",
}
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
        "requests of the same key generated; draft_model: those of a smaller model; eagle, eagle3, "
        "medusa: those of a head that was trained for the model; mtp (and vLLM's names by model, "
        "such as deepseek_mtp): those of layers in the model's own checkpoint; custom_class: those "
        "of a Python class, package.module.Class.",
        choices=(None, *_OF_TEXTS, *OF_MODELS, *MTP_NAMES[1:], CUSTOM, *_ABSENT),
        alone="spec_method",
        group="VllmConfig",
    )
    model: str | None = option(
        None,
        "The smaller model or the head, as --model, whose vocabulary must be the model's; or the "
        "class.",
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
        "standard, block: a draft is kept if it equals the token that is sampled, so that text is "
        "that without drafts; synthetic: it is kept by chance, whatever it is, to measure speed.",
        choices=("standard", "block", "synthetic"),
    )
    synthetic_acceptance_rates: list[Any] | None = option(
        None,
        "synthetic: of each draft, how often it and those before it are kept, 0 to 1.",
    )
    synthetic_acceptance_length: float | None = option(
        None, "synthetic, instead: tokens that a step yields on average.", ge=1
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
        if why := _ABSENT.get(self.method):
            raise NotInBuildError(
                f"--speculative-config.method {self.method} is not available: {why}; use eagle3, "
                "draft_model or suffix"
            )
        if self.method in (*OF_MODELS, CUSTOM) and self.model is None:
            what = "a Python class" if self.method == CUSTOM else "one with the same vocabulary"
            raise UsageError(
                f"--speculative-config.method {self.method} has no model; set "
                f"--speculative-config.model to {what}"
            )
        if self.num_speculative_tokens is None:
            raise UsageError(
                "--speculative-config has no num_speculative_tokens; set it to the number of "
                "tokens to draft, such as 4"
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
        self._check_synthetic()
        low, high = self.lookup
        if low > high:
            raise UsageError(
                f"--speculative-config.prompt_lookup_min {low} is more than prompt_lookup_max "
                f"{high}; lower it"
            )

    def _check_synthetic(self) -> None:
        rates, length = self.synthetic_acceptance_rates, self.synthetic_acceptance_length
        count, flag = self.num_drafts, "--speculative-config.synthetic_acceptance"
        is_synthetic = self.rejection_sample_method == "synthetic"
        if (rates is not None) + (length is not None) != is_synthetic:
            raise UsageError(
                f"{flag}_rates or {flag}_length, and only one of them, belongs to "
                "rejection_sample_method synthetic"
            )
        if rates is not None and not (
            len(rates) == count
            and all(isinstance(rate, int | float) and 0 <= rate <= 1 for rate in rates)
            and sorted(rates, reverse=True) == rates
        ):
            raise UsageError(
                f"{flag}_rates is {rates}; set it to {count} numbers from 1 to 0, none more than "
                "that before it"
            )
        if length is not None and length > count + 1:
            raise UsageError(f"{flag}_length {length} is more than {count + 1} tokens; lower it")

    @property
    def synthetic_rates(self) -> list[float] | None:
        """Of each place, the share of drafts kept by chance; None: those that are sampled."""
        length = self.synthetic_acceptance_length
        if length is None:
            return self.synthetic_acceptance_rates
        # The mean with the least variance.
        return [min(max(length - 1 - place, 0.0), 1.0) for place in range(self.num_drafts)]

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
