"""ParallelConfig: how the model is divided over devices; one of each in this build."""

from __future__ import annotations

from typing import Literal

from vllm_lite.config.option import config, option

_ONE = "leave it at 1: the model runs on one device"


@config
class ParallelConfig:
    """Sizes of the parallel groups and what runs the workers."""

    tensor_parallel_size: int = option(
        1,
        "Workers that each hold a slice of every layer.",
        aliases=("-tp",),
        ge=1,
        works=(1,),
        remedy=_ONE,
    )
    pipeline_parallel_size: int = option(
        1,
        "Workers that each hold some of the layers.",
        aliases=("-pp",),
        ge=1,
        works=(1,),
        remedy=_ONE,
    )
    data_parallel_size: int = option(
        1,
        "Full copies of the engine.",
        aliases=("-dp",),
        ge=1,
        works=(1,),
        remedy="leave it at 1 and run several servers behind a balancer",
    )
    distributed_executor_backend: Literal["uni", "mp", "ray", "external_launcher"] | None = option(
        None,
        "What runs the workers; uni: the engine's own process.",
        works=("uni",),
        remedy="use uni or leave it out",
    )
