"""ExpertParallelConfig: how experts are divided over workers; each has a part of every one."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from vllm_lite.config.option import config, option

_NO_EXPERTS = "leave it out: every worker has a part of each expert"


@config
class ExpertParallelConfig:
    """Experts over workers."""

    GROUP: ClassVar[str] = "ParallelConfig"

    enable_expert_parallel: bool = option(
        False,
        "Give each worker whole experts.",
        level="absent",
        remedy=_NO_EXPERTS,
    )
    all2all_backend: Literal[
        "allgather_reducescatter",
        "deepep_high_throughput",
        "deepep_low_latency",
        "deepep_v2",
        "flashinfer_all2allv",
        "flashinfer_nvlink_one_sided",
        "flashinfer_nvlink_two_sided",
        "moonep",
        "mori_high_throughput",
        "mori_low_latency",
        "naive",
        "nixl_ep",
        "pplx",
    ] = option(
        "allgather_reducescatter",
        "How tokens travel between experts.",
        level="absent",
        remedy=_NO_EXPERTS,
    )
    enable_eplb: bool = option(
        False,
        "Move experts between workers while serving.",
        level="absent",
        remedy=_NO_EXPERTS,
    )
    eplb_config: dict[str, Any] = option(
        {
            "window_size": 1000,
            "step_interval": 3000,
            "num_redundant_experts": 0,
            "log_balancedness": False,
        },
        "JSON: how experts are moved.",
        level="absent",
        remedy=_NO_EXPERTS,
    )
    expert_placement_strategy: Literal["linear", "round_robin"] = option(
        "linear",
        "How experts are laid out.",
        level="absent",
        remedy=_NO_EXPERTS,
    )
    enable_ep_weight_filter: bool = option(
        False, "Read a worker's own experts alone.", level="absent", remedy=_NO_EXPERTS
    )
    enable_elastic_ep: bool = option(
        False, "Add and take away workers of experts.", level="absent", remedy=_NO_EXPERTS
    )
    elastic_ep_max_dp_size: int | None = option(
        None, "Most engines of those.", ge=1, level="absent", remedy=_NO_EXPERTS
    )
