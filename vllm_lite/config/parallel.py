"""ParallelConfig: division of the model over workers."""

from __future__ import annotations

from typing import Literal

from vllm_lite.config.options.option import config, option
from vllm_lite.errors import UsageError

_ONE = "leave it at 1: the model runs on one device"


@config
class ParallelConfig:
    """Sizes of the parallel groups and kind of the workers."""

    tensor_parallel_size: int = option(
        1,
        "Workers that each hold a slice of every layer; processes that share a CPU's cores.",
        aliases=("-tp",),
        ge=1,
        le=64,
    )
    pipeline_parallel_size: int = option(
        1,
        "Workers that each hold a range of layers.",
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
        "Kind of workers; uni: in the engine core's process; mp: a process each. "
        "Default: mp with several workers.",
        works=("uni", "mp"),
        remedy="use mp or uni, or leave it out",
    )

    max_parallel_loading_workers: int | None = option(
        None,
        "Workers that read weights at a time, so that memory holds the layers at hand of no more; "
        "default: all.",
        ge=1,
    )

    @property
    def has_ranks(self) -> bool:
        """Whether workers are processes of their own."""
        return self.tensor_parallel_size > 1 or self.distributed_executor_backend == "mp"

    def check(self, device: str) -> None:
        """Raise UsageError where workers cannot be run as asked for."""
        size, backend = self.tensor_parallel_size, self.distributed_executor_backend
        if size > 1 and backend == "uni":
            raise UsageError(
                f"--distributed-executor-backend uni runs one worker, not "
                f"--tensor-parallel-size {size}; use mp or leave it out"
            )
        if self.has_ranks and device != "cpu":
            flag = "--distributed-executor-backend mp"
            if size > 1:
                flag = f"--tensor-parallel-size {size}"
            raise UsageError(
                f"{flag} is not available on a GPU in this build; leave it out, or add --device cpu"
            )
