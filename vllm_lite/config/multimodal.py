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
    video_pruning_method: Literal["evs", "vidcom2"] = option(
        "evs", "How they are chosen.", level="absent", remedy=_NO_MEDIA
    )
    language_model_only: bool = option(
        False,
        "Take no media, though the model could.",
        level="idle",
        why="models read text alone here",
    )
    mm_encoder_only: bool = option(
        False, "Run the media encoder alone.", level="absent", remedy=_NO_MEDIA
    )
    mm_encoder_attn_dtype: Literal["fp8"] | None = option(
        None, "Numbers that media encoders attend in.", level="absent", remedy=_NO_MEDIA
    )
    mm_encoder_fp8_scale_path: str | None = option(
        None, "File of their scales.", level="absent", remedy=_NO_MEDIA
    )
    mm_encoder_fp8_scale_save_path: str | None = option(
        None, "File to write found scales to.", level="absent", remedy=_NO_MEDIA
    )
    mm_encoder_fp8_scale_save_margin: float = option(
        1.5, "Factor of safety of those.", gt=0, level="absent", remedy=_NO_MEDIA
    )
    mm_hasher_algorithm: Literal["blake3", "sha256", "sha512"] = option(
        "blake3", "Hash that identifies a media item.", level="absent", remedy=_NO_MEDIA
    )
    mm_tensor_ipc: Literal["direct_rpc", "torch_shm"] = option(
        "direct_rpc", "How media travel to the engine.", level="absent", remedy=_NO_MEDIA
    )
    mm_processor_device: Literal["auto", "cpu"] = option(
        "auto", "Where media are processed.", level="idle", why="models read text alone here"
    )
    mm_ipc_gpu_memory_gb: float = option(
        0.0, "GiB of GPU memory for media on their way.", ge=0, level="absent", remedy=_NO_MEDIA
    )
    mm_device_do_normalize: bool | None = option(
        None, "Normalise images on the device.", level="absent", remedy=_NO_MEDIA
    )
