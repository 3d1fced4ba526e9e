"""ParallelConfig: how the model is divided over devices, and engines over machines."""

from __future__ import annotations

from typing import Any, Literal

from vllm_lite.config.option import config, option
from vllm_lite.errors import UsageError

_ONE = "leave it at 1: the model runs on one device"
_ONE_NODE = "leave it out: an engine runs on one machine"
_ONE_ENGINE = "leave it out and run several servers behind a balancer"
_ONE_WORKER = "leave it out: workers here do all of each step together"
_NO_RAY = "leave it out: Ray is not used"
_BIND = "set VLLM_CPU_OMP_THREADS_BIND to the CPUs of the engine"
_NO_GROUP = "a worker that does not answer is known by what its process does"
_RESTART = "leave it out: a server whose engine dies ends, for a supervisor to start it again"


@config
class ParallelConfig:
    """Sizes of the parallel groups and what runs the workers."""

    tensor_parallel_size: int = option(
        1,
        "Workers that each hold a slice of every layer; processes that share a CPU's cores.",
        aliases=("-tp",),
        ge=1,
        le=64,
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
        "What runs the workers; uni: the engine core's own process; mp: a process for each. "
        "Default: mp where there are several workers.",
        works=("uni", "mp"),
        remedy="use mp or uni, or leave it out",
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
    device_ids: str | None = option(
        None,
        "Devices to use, by index.",
        works=("0",),
        level="absent",
        remedy="use CUDA_VISIBLE_DEVICES: an engine runs on the first GPU that it sees",
    )
    numa_bind: bool = option(
        False, "Keep workers on the CPUs near their GPU.", level="absent", remedy=_BIND
    )
    numa_bind_nodes: list[int] | None = option(
        None, "NUMA node of each worker.", level="absent", remedy=_BIND
    )
    numa_bind_cpus: list[str] | None = option(
        None, "CPUs of each worker.", level="absent", remedy=_BIND
    )
    distributed_timeout_seconds: int | None = option(
        None, "Seconds that workers wait for each other.", ge=1, level="idle", why=_NO_GROUP
    )
    cpu_distributed_timeout_seconds: int | None = option(
        None, "The same for groups over the CPU.", ge=1, level="idle", why=_NO_GROUP
    )
    dcp_comm_backend: Literal["a2a", "ag_rs"] | None = option(
        None, "How workers that share context talk.", level="absent", remedy=_ONE
    )
    dcp_q_replicate: bool | None = option(
        None, "Give each of them all queries.", level="absent", remedy=_ONE
    )
    data_parallel_multi_port_external_lb: bool = option(
        False,
        "Give every engine a port of its own, for a balancer of yours.",
        aliases=("-dpm",),
        level="absent",
        remedy=_ONE_ENGINE,
    )
    dp_sync_interval: int = option(
        16, "Steps between two agreements of engines.", ge=1, level="absent", remedy=_ONE_ENGINE
    )
    enable_hc_sp: bool = option(
        False, "Divide hyper-connections among workers.", level="absent", remedy=_ONE_WORKER
    )
    enable_batch_sharded_sampling: bool | None = option(
        None, "Divide sampling among workers.", level="absent", remedy=_ONE_WORKER
    )
    enable_shm_tensor_arena: bool = option(
        False, "Send tensors to workers in shared memory.", level="absent", remedy=_ONE_WORKER
    )
    enable_fault_tolerance: bool = option(
        False, "Start an engine that died again.", level="absent", remedy=_RESTART
    )
    fault_tolerance_config: dict[str, Any] = option(
        {"engine_recovery_timeout_sec": 120},
        "JSON: how that is done.",
        level="absent",
        remedy=_RESTART,
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
