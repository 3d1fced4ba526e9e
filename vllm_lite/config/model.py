"""ModelConfig: which model, in which numbers, with which defaults for its requests."""

from __future__ import annotations

from typing import Any, Literal

from vllm_lite.config.option import config, option

DTYPE_WORDS = {"half": "float16", "float": "float32"}


@config
class ModelConfig:
    """The model and what the checkpoint's own settings are changed to."""

    model: str = option(
        "Qwen/Qwen3-0.6B", "Model to run: demo, a directory, a .gguf file or a hub id."
    )
    runner: Literal["auto", "generate", "pooling", "draft"] = option(
        "auto",
        "What the model is run for.",
        works=("auto", "generate"),
        remedy="leave it at auto: models generate text here",
    )
    tokenizer: str = option(
        "",
        "Tokenizer to use: a directory, a .gguf file or a hub id.",
        auto="the model's own",
    )
    tokenizer_mode: Literal["auto", "hf", "slow", "mistral", "custom"] = option(
        "auto",
        "Which tokenizer implementation to load.",
        works=("auto", "hf"),
        remedy="use auto",
    )
    skip_tokenizer_init: bool = option(False, "Load no tokenizer: take and give token ids only.")
    trust_remote_code: bool = option(
        False, "Allow Python code that comes with a tokenizer to run here."
    )
    dtype: Literal["float32", "bfloat16", "float16"] = option(
        "float32",
        "Numbers that weights and activations are computed in.",
        auto="bfloat16 where the machine computes in it natively, else float32",
        choices=("auto", "half", "float16", "bfloat16", "float", "float32"),
    )
    seed: int = option(0, "Seed of all sampling that brings none of its own.", ge=0)
    revision: str | None = option(None, "Branch, tag or commit of a hub model.")
    tokenizer_revision: str | None = option(None, "Branch, tag or commit of a hub tokenizer.")
    hf_token: str | bool | None = option(
        None, "Hub access token; given bare, the stored login.", secret=True, bare=True
    )
    hf_config_path: str | None = option(
        None, "Directory, or config.json file, to read the model's configuration from."
    )
    hf_overrides: dict[str, Any] = option(
        {}, "JSON whose keys replace those of the model's configuration."
    )
    rope_scaling: dict[str, Any] | None = option(
        None,
        "JSON that replaces the rotary scaling.",
        deprecated="--hf-overrides.rope_scaling",
    )
    rope_theta: float | None = option(
        None, "Rotary base frequency.", gt=0, deprecated="--hf-overrides.rope_theta"
    )
    max_model_len: int = option(
        2048,
        "Longest prompt plus output, in tokens.",
        auto="the checkpoint's own length",
        ge=1,
        human=True,
        words={"auto": -1},
    )
    disable_sliding_window: bool = option(
        False, "Attend to everything, with a context no longer than the window."
    )
    quantization: str | None = option(
        None,
        "How weights are stored.",
        auto="read from the checkpoint",
        aliases=("-q",),
        works=(None, "gguf"),
        remedy="use an unquantised checkpoint or a GGUF file",
    )
    enforce_eager: bool = option(False, "Run layer by layer, without captured graphs.")
    max_logprobs: int = option(
        20, "Most log-probabilities that a request may ask for; -1: no limit.", ge=-1
    )
    logprobs_mode: Literal[
        "raw_logprobs", "raw_logits", "processed_logprobs", "processed_logits"
    ] = option(
        "raw_logprobs",
        "Report logits or log-probabilities, before or after penalties and filters.",
    )
    served_model_name: list[str] = option(
        [], "Names that clients may use; the first is the one reported.", auto="the model's name"
    )
    generation_config: str = option(
        "auto",
        "Where sampling defaults come from: auto (the checkpoint), vllm (none) or a directory.",
    )
    override_generation_config: dict[str, Any] = option(
        {}, "JSON of sampling defaults, over those of --generation-config."
    )
