"""MambaConfig: state-space layers; no model here has any."""

from __future__ import annotations

from typing import Literal

from vllm_lite.config.option import config, option

_NO_MAMBA = "leave it out: no model here has state-space layers"


@config
class MambaConfig:
    """State-space layers."""

    mamba_backend: str = option(
        "triton",
        "Library of the state's update.",
        choices=("triton", "flashinfer", "cpu"),
        level="absent",
        remedy=_NO_MAMBA,
    )
    mamba_ssu_algorithm: Literal["auto", "horizontal", "simple", "vertical"] | None = option(
        None, "How FlashInfer updates the state.", level="absent", remedy=_NO_MAMBA
    )
    enable_mamba_cache_stochastic_rounding: bool = option(
        False, "Round the stored state at random.", level="absent", remedy=_NO_MAMBA
    )
    mamba_cache_philox_rounds: int = option(
        0, "Rounds of the generator of that randomness.", ge=0, level="absent", remedy=_NO_MAMBA
    )
    gdn_prefill_backend: Literal["flashinfer", "triton", "cutedsl", "aiter_flydsl"] | None = option(
        None,
        "Library of gated delta layers' prefill.",
        group="options",
        level="absent",
        remedy=_NO_MAMBA,
    )
    kda_prefill_backend: Literal["auto", "triton", "flashkda", "flashinfer", "fused"] | None = (
        option(
            None,
            "Library of Kimi delta layers' prefill.",
            group="options",
            works=("auto",),
            level="absent",
            remedy=_NO_MAMBA,
        )
    )
    kda_decode_backend: Literal["auto", "native", "flashinfer", "triton"] | None = option(
        None,
        "Library of their decoding.",
        group="options",
        works=("auto",),
        level="absent",
        remedy=_NO_MAMBA,
    )
