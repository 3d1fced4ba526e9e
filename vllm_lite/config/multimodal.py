"""MultiModalConfig: images, audio and video in prompts; models read text alone in this build."""

from __future__ import annotations

from typing import Any, Literal

from vllm_lite.config.option import config, option

_NO_MEDIA = "leave it out: models read text here"


@config
class MultiModalConfig:
    """Media in prompts."""

    limit_mm_per_prompt: dict[str, Any] = option(
        {},
        "JSON: most items of each kind in a prompt.",
        level="absent",
        remedy=_NO_MEDIA,
    )
    enable_mm_embeds: bool = option(
        False,
        "Take embeddings in place of media.",
        level="absent",
        remedy=_NO_MEDIA,
    )
    media_io_kwargs: dict[str, Any] = option(
        {},
        "JSON: how each kind of media is read.",
        level="absent",
        remedy=_NO_MEDIA,
    )
    mm_processor_kwargs: dict[str, Any] | None = option(
        None,
        "JSON for the model's media processor.",
        level="absent",
        remedy=_NO_MEDIA,
    )
    mm_processor_cache_gb: float = option(
        4.0,
        "GiB of processed media to keep; 0: none.",
        ge=0,
        works=(0,),
        level="absent",
        remedy=_NO_MEDIA,
    )
    mm_processor_cache_type: Literal["lru", "shm"] = option(
        "lru",
        "Where processed media are kept.",
        level="absent",
        remedy=_NO_MEDIA,
    )
    mm_shm_cache_max_object_size_mb: int = option(
        128,
        "Largest item of the shared cache, in MiB.",
        ge=0,
        level="absent",
        remedy=_NO_MEDIA,
    )
    mm_encoder_tp_mode: Literal["weights", "data"] = option(
        "weights",
        "What of a media encoder is divided among workers.",
        level="absent",
        remedy=_NO_MEDIA,
    )
    mm_encoder_attn_backend: str | None = option(
        None,
        "Attention kernel of media encoders.",
        level="absent",
        remedy=_NO_MEDIA,
    )
    interleave_mm_strings: bool = option(
        False,
        "Keep media where they stand in the text.",
        level="absent",
        remedy=_NO_MEDIA,
    )
    skip_mm_profiling: bool = option(
        False,
        "Reserve no memory for media encoders.",
        level="absent",
        remedy=_NO_MEDIA,
    )
    video_pruning_rate: float | None = option(
        None,
        "Share of a video's tokens to drop.",
        ge=0,
        le=1,
        works=(0,),
        level="absent",
        remedy=_NO_MEDIA,
    )
