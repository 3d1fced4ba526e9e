"""MambaConfig: how other builds compute state-space layers."""

from __future__ import annotations

from typing import Literal

from vllm_lite.config.option import config, option

_NO_CHOICE = "leave it out: each device has one set of kernels for state-space layers"
_NO_ROUNDING = "leave it out: states are float32 and never rounded"
_NO_DELTA = "leave it out: no model here has delta layers"


@config
class MambaConfig:
    """State-space layers."""

    mamba_backend: str = option(
        "triton",
        "Library of the state's update.",
        choices=("triton", "flashinfer", "cpu"),
        level="absent",
        remedy=_NO_CHOICE,
    )
    mamba_ssu_algorithm: Literal["auto", "horizontal", "simple", "vertical"] | None = option(
        None, "How FlashInfer updates the state.", level="absent", remedy=_NO_CHOICE
    )
    enable_mamba_cache_stochastic_rounding: bool = option(
        False, "Round the stored state at random.", level="absent", remedy=_NO_ROUNDING
    )
    mamba_cache_philox_rounds: int = option(
        0, "Rounds of the generator of that randomness.", ge=0, level="absent", remedy=_NO_ROUNDING
    )
    gdn_prefill_backend: Literal["flashinfer", "triton", "cutedsl", "aiter_flydsl"] | None = option(
        None,
        "Library of gated delta layers' prefill.",
        group="options",
        level="absent",
        remedy=_NO_DELTA,
    )
    kda_prefill_backend: Literal["auto", "triton", "flashkda", "flashinfer", "fused"] | None = (
        option(
            None,
            "Library of Kimi delta layers' prefill.",
            group="options",
            works=("auto",),
            level="absent",
            remedy=_NO_DELTA,
        )
    )
    kda_decode_backend: Literal["auto", "native", "flashinfer", "triton"] | None = option(
        None,
        "Library of their decoding.",
        group="options",
        works=("auto",),
        level="absent",
        remedy=_NO_DELTA,
    )
