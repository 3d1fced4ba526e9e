"""ParallelConfig: how the model is divided over devices, and engines over machines."""

from __future__ import annotations

from typing import Any, Literal

from vllm_lite.config.option import config, option

_ONE = "leave it at 1: the model runs on one device"
_ONE_NODE = "leave it out: an engine runs on one machine"
_ONE_ENGINE = "leave it out and run several servers behind a balancer"
_ONE_WORKER = "leave it out: there is one worker"
_NO_EXPERTS = "leave it out: no model here has experts"
_NO_RAY = "leave it out: Ray is not used"


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
    nnodes: int = option(
        1,
        "Machines that one engine runs on.",
        aliases=("-n",),
        ge=1,
        level="absent",
        remedy=_ONE_NODE,
    )
    node_rank: int = option(
        0,
        "Index of this machine among them.",
        aliases=("-r",),
        ge=0,
        level="absent",
        remedy=_ONE_NODE,
    )
    master_addr: str = option(
        "127.0.0.1",
        "Address at which the machines meet.",
        level="absent",
        remedy=_ONE_NODE,
    )
    master_port: int = option(
        29501,
        "Port at which the machines meet.",
        ge=0,
        le=65535,
        level="absent",
        remedy=_ONE_NODE,
    )
    data_parallel_rank: int | None = option(
        None,
        "Index of this engine, where a balancer of yours divides requests.",
        aliases=("-dpn",),
        ge=0,
        level="absent",
        remedy=_ONE_ENGINE,
    )
    data_parallel_start_rank: int | None = option(
        None,
        "Index of the first engine on this machine.",
        aliases=("-dpr",),
        ge=0,
        level="absent",
        remedy=_ONE_ENGINE,
    )
    data_parallel_size_local: int | None = option(
        None,
        "Engines on this machine.",
        aliases=("-dpl",),
        ge=0,
        works=(1,),
        level="absent",
        remedy=_ONE_ENGINE,
    )
    data_parallel_address: str | None = option(
        None,
        "Address of the machine that coordinates the engines.",
        aliases=("-dpa",),
        level="absent",
        remedy=_ONE_ENGINE,
    )
    data_parallel_rpc_port: int | None = option(
        None,
        "Port of the coordinator.",
        aliases=("-dpp",),
        ge=0,
        le=65535,
        level="absent",
        remedy=_ONE_ENGINE,
    )
    data_parallel_backend: Literal["mp", "ray"] = option(
        "mp",
        "What starts the engines.",
        aliases=("-dpb",),
        level="absent",
        remedy=_NO_RAY,
    )
    data_parallel_hybrid_lb: bool = option(
        False,
        "Balance among the engines of each machine, yourself among machines.",
        aliases=("-dph",),
        level="absent",
        remedy=_ONE_ENGINE,
    )
    data_parallel_external_lb: bool = option(
        False,
        "Give every engine an address of its own, for a balancer of yours.",
        aliases=("-dpe",),
        level="absent",
        remedy=_ONE_ENGINE,
    )
    decode_context_parallel_size: int = option(
        1,
        "Workers that share the cached context of a request.",
        aliases=("-dcp",),
        ge=1,
        level="absent",
        remedy=_ONE,
    )
    prefill_context_parallel_size: int = option(
        1,
        "Workers that share the prefill of a prompt.",
        aliases=("-pcp",),
        ge=1,
        level="absent",
        remedy=_ONE,
    )
    cp_kv_cache_interleave_size: int = option(
        1,
        "Tokens in a row on a worker where context is shared.",
        ge=1,
        level="absent",
        remedy=_ONE,
    )
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
    enable_dbo: bool = option(
        False,
        "Compute one half of a batch while the other communicates.",
        level="absent",
        remedy=_ONE_WORKER,
    )
    ubatch_size: int = option(
        0,
        "Parts of a batch where they overlap.",
        ge=0,
        level="absent",
        remedy=_ONE_WORKER,
    )
    dbo_decode_token_threshold: int = option(
        32,
        "Fewest tokens of a batch of decodes to divide.",
        ge=0,
        level="absent",
        remedy=_ONE_WORKER,
    )
    dbo_prefill_token_threshold: int = option(
        512,
        "Fewest tokens of a batch with prefills to divide.",
        ge=0,
        level="absent",
        remedy=_ONE_WORKER,
    )
    disable_nccl_for_dp_synchronization: bool = option(
        False,
        "Coordinate engines over the CPU.",
        level="absent",
        remedy=_ONE_ENGINE,
    )
    max_parallel_loading_workers: int | None = option(
        None,
        "Workers that load weights at a time.",
        ge=1,
        works=(1,),
        level="absent",
        remedy=_ONE_WORKER,
    )
    ray_workers_use_nsight: bool = option(
        False,
        "Profile Ray workers with Nsight.",
        level="absent",
        remedy=_NO_RAY,
    )
    worker_cls: str = option(
        "auto",
        "Import path of a worker class.",
        level="absent",
        remedy="leave it at auto: the worker is this package's own",
    )
    worker_extension_cls: str = option(
        "",
        "Import path of a class whose methods the worker gets.",
        level="absent",
        remedy="leave it out: the worker is this package's own",
    )
