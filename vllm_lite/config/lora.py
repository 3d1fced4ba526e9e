"""LoRAConfig: low-rank adapters that requests choose; not in this build."""

from __future__ import annotations

from typing import Any, Literal

from vllm_lite.config.option import config, option

_MERGED = "leave it out and serve a model that the adapter was merged into"


@config
class LoRAConfig:
    """Low-rank adapters."""

    enable_lora: bool = option(
        False,
        "Let requests choose an adapter.",
        level="absent",
        remedy=_MERGED,
    )
    max_loras: int = option(
        1,
        "Most adapters in one step.",
        ge=1,
        level="absent",
        remedy=_MERGED,
    )
    max_lora_rank: Literal[1, 8, 16, 32, 64, 128, 256, 320, 512] = option(
        16,
        "Highest rank of an adapter.",
        level="absent",
        remedy=_MERGED,
    )
    lora_dtype: Literal["auto", "float16", "bfloat16", "float32"] = option(
        "auto",
        "Numbers of adapter weights.",
        level="absent",
        remedy=_MERGED,
    )
    max_cpu_loras: int | None = option(
        None,
        "Adapters to keep in host memory.",
        ge=1,
        level="absent",
        remedy=_MERGED,
    )
    fully_sharded_loras: bool = option(
        False,
        "Divide the adapters' whole computation among workers.",
        level="absent",
        remedy=_MERGED,
    )
    default_mm_loras: dict[str, Any] | None = option(
        None,
        "JSON: the adapter of each kind of media.",
        level="absent",
        remedy=_MERGED,
    )
    lora_target_modules: list[str] | None = option(
        None, "Layers that adapters change.", level="absent", remedy=_MERGED
    )
    enable_tower_connector_lora: bool = option(
        False, "Let adapters change media encoders.", level="absent", remedy=_MERGED
    )
    specialize_active_lora: bool = option(
        False, "Capture graphs for each number of adapters.", level="absent", remedy=_MERGED
    )
    enable_mixed_moe_lora_format: bool = option(
        False, "Take adapters of experts in both layouts.", level="absent", remedy=_MERGED
    )
    enable_moe_shared_loras: bool = option(
        False, "Share the adapters of experts.", level="absent", remedy=_MERGED
    )
    max_lora_cls_labels: int | None = option(
        None, "Most classes of an adapter that classifies.", ge=1, level="absent", remedy=_MERGED
    )
