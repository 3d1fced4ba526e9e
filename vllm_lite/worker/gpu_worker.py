"""The worker of a GPU: memory, graphs and asynchronous steps.

Loads the weights, runs the largest step once to measure its memory, leaves the rest to the KV
cache, and captures the graphs. Knows the device only through `Device`.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from torch import Tensor

from vllm_lite import platform
from vllm_lite.config.vllm import VllmConfig
from vllm_lite.core.kv_group import cache_groups
from vllm_lite.core.kv_plan import KVCachePlan, page_bytes
from vllm_lite.core.kv_spec import KVCacheSpec
from vllm_lite.core.memory_budget import (
    DeviceMemory,
    cache_bytes,
    describe_memory,
    granted_bytes,
    graph_bytes,
    measured_use,
)
from vllm_lite.core.pending import PendingOutput
from vllm_lite.core.step import LateMasks, ModelRunnerOutput, SchedulerOutput
from vllm_lite.errors import EngineDeadError, UsageError
from vllm_lite.kernels import dispatch
from vllm_lite.kernels.metadata import attention_metadata
from vllm_lite.log import init_logger, timeline
from vllm_lite.worker.batch import StepRows, eager
from vllm_lite.worker.block_table import block_tables
from vllm_lite.worker.cuda_device import CudaDevice
from vllm_lite.worker.decode_graphs import DecodeGraphs
from vllm_lite.worker.device import Device
from vllm_lite.worker.device_inputs import DeviceInputs, MirroredBlockTables
from vllm_lite.worker.drafting.drafters import (
    Models,
    load_models,
    make_step_drafter,
    target_forward,
)
from vllm_lite.worker.graph_sampler import GraphSampler
from vllm_lite.worker.graph_shapes import GraphShape, longer_shapes
from vllm_lite.worker.interface import MemoryTag
from vllm_lite.worker.kv_cache import allocate_kv_cache, allocate_states
from vllm_lite.worker.model_runner import ModelRunner
from vllm_lite.worker.request_states import RequestStates
from vllm_lite.worker.trial_steps import check_answer, trial_steps
from vllm_lite.worker.worker import Worker

logger = init_logger(__name__)

_GIB = 1 << 30
# More threads read a file no faster, and each has page-locked buffers.
_MOST_THREADS = 16


def device_runner(
    config: VllmConfig,
    plan: KVCachePlan,
    models: Models,
    device: Device,
    graph_sizes: tuple[int, ...] = (),
    longer: tuple[GraphShape, ...] = (),
) -> tuple[ModelRunner, DecodeGraphs]:
    """The parts of steps whose inputs are built on the device, with their graphs.

    `graph_sizes`: batch sizes of decode steps to capture, and `longer` steps; others run eagerly.
    """
    place = device.torch_device
    tables = block_tables(config, plan, MirroredBlockTables)
    states = RequestStates(config, tables, has_states=plan.num_states > 0)
    inputs, model = DeviceInputs(states, tables, place), models.target
    drafter = make_step_drafter(config, models, states, place)

    def compute(rows: StepRows, shape: GraphShape) -> Tensor:
        made = inputs.graph_inputs(rows, shape)
        with attention_metadata(made.attention):
            return model.forward(made.input_ids, made.positions)

    maker = device.make_graph_maker()
    otherwise = eager(inputs, target_forward(config, models, drafter))
    shapes = [GraphShape(size, size, config.model.max_model_len) for size in graph_sizes]
    sampler = GraphSampler(model, inputs, place) if config.facts.pooling is None else None
    graphs = DecodeGraphs(compute, sampler, otherwise, [*shapes, *longer], inputs.idle_rows, maker)
    return ModelRunner(config, model, inputs, graphs, place, drafter), graphs


class GpuWorker(Worker):
    """The model on one GPU, with its cache."""

    def __init__(self, config: VllmConfig, device: Device | None = None) -> None:
        """Raises UsageError for an unusable device or weights that do not fit."""
        self._config = config
        self._device = CudaDevice() if device is None else device
        self._graph_sizes, self._longer = config.capture_sizes, longer_shapes(config)
        self._runner: ModelRunner | None = None
        num_threads = min(platform.num_compute_threads(), _MOST_THREADS)
        self._start_kernels(self._device.torch_device.type, num_threads)
        self._start = self._device.read_memory()
        granted_bytes(config, self._start)
        self._models = self._load()
        if self._models.tapped is not None:
            self._graph_sizes, self._longer = (), ()  # a graph gives one result
        self._device.trim_memory()
        self._loaded = self._device.read_memory()
        self._use = measured_use(self._start, self._loaded, self._loaded, 0)

    def available_memory(self) -> int:
        """Bytes for the KV cache, after the largest step was run and measured.

        Raises UsageError where too little is left or the step itself does not fit.
        """
        spec, scheduler = self.kv_cache_spec(), self._config.scheduler
        what = (
            f"a step of --max-num-batched-tokens {scheduler.max_num_batched_tokens} and "
            f"--max-num-seqs {scheduler.max_num_seqs}"
        )
        fix = (
            f"set --max-num-batched-tokens to {max(1, scheduler.max_num_batched_tokens // 2)} and "
            f"--max-num-seqs to {max(1, scheduler.max_num_seqs // 2)}"
        )
        with self._room_for(what, fix):
            stepped, graphs = self._try_out(spec)
        # The trial's objects are in cycles: their memory is free only now.
        gc.collect()
        self._device.trim_memory()
        self._use = measured_use(self._start, self._loaded, stepped, graphs)
        timeline.mark("largest step")
        return cache_bytes(self._config, spec, self._use, self._start)

    def initialize_cache(self, plan: KVCachePlan) -> float:
        """Allocate the cache, capture the graphs, and log the memory budget."""
        self._bind(plan)
        runner, graphs = self._make_runner(plan)
        timeline.mark("KV cache")
        if self._graph_sizes and self._config.compilation.cudagraph_capture_lazily:
            logger.info("%d sizes of steps are captured when met", len(graphs.shapes))
        elif self._graph_sizes:
            fix = "lower --gpu-memory-utilization, or set --max-cudagraph-capture-size to a half"
            with self._room_for("the graphs", fix):
                self._capture(graphs)
            timeline.mark("graphs")
        self._runner = runner
        memory = self._device.read_memory()
        logger.info("%s", describe_memory(self._use, plan.total_bytes, memory))
        return 0.0  # its host waits more than it computes

    def submit(self, step: SchedulerOutput, masks: LateMasks | None = None) -> PendingOutput:
        """Launch one step; raises EngineDeadError where the device is broken."""
        with _noticing(self._device):
            return _Watched(super().submit(step, masks), self._device)

    def release(self, tags: Collection[MemoryTag]) -> int:
        """Refuse: graphs hold addresses, which need their memory."""
        raise UsageError("the memory of a GPU cannot be given back in this build")

    def refill_weights(self) -> None:
        """Nothing is released."""

    def describe(self) -> str:
        """For the log: device, number type, kernels and weights."""
        chosen = f"{self._device.name}, {self._config.model.dtype}, kernels {dispatch.describe()}"
        return f"{chosen}; weights {self._use.weights / _GIB:.2f} GiB"

    def _load(self) -> Models:
        what = f"the weights of {self._config.facts.path}"
        with self._room_for(what, "use a smaller or a quantised model"):
            return load_models(self._config, str(self._device.torch_device))

    def _make_runner(self, plan: KVCachePlan) -> tuple[ModelRunner, DecodeGraphs]:
        graphed = self._graph_sizes, self._longer
        return device_runner(self._config, plan, self._models, self._device, *graphed)

    def _bind(self, plan: KVCachePlan) -> None:
        device = self._device.torch_device
        self._models.bind_kv_cache(allocate_kv_cache(plan, device), allocate_states(plan, device))

    def _try_out(self, spec: KVCacheSpec) -> tuple[DeviceMemory, int]:
        """A reading after the trial steps, and the bytes that all graphs would take.

        With a cache of two blocks, which goes as it came: one would have other strides than many,
        for which kernels are compiled.
        """
        block_size = self._config.cache.block_size
        page = page_bytes(cache_groups(spec), block_size)
        plan = KVCachePlan(spec, 2, block_size, page, num_states=2 * bool(spec.states))
        self._bind(plan)
        # Without graphs, which would take steps of other sizes than those that are to be tried.
        runner, _ = device_runner(self._config, plan, self._models, self._device)
        largest, *small = trial_steps(self._config, len(plan.groups))
        runner.submit(largest).get()
        for step in small:
            check_answer(self._config, runner.submit(step).get())
        stepped = self._device.read_memory()
        _, recorded = self._make_runner(plan)
        self._device.trim_memory()
        frees = [self._device.read_memory().free]
        for shape in recorded.shapes[:-3:-1]:
            recorded.capture(shape)
            self._device.trim_memory()
            frees.append(self._device.read_memory().free)
        return stepped, graph_bytes(frees, len(recorded.shapes))

    def _capture(self, graphs: DecodeGraphs) -> None:
        before, started = self._device.read_memory(), time.monotonic()
        # The largest first: the others fit into its memory.
        for shape in reversed(graphs.shapes):
            graphs.capture(shape)
        self._device.trim_memory()
        taken = max(0, before.free - self._device.read_memory().free)
        self._use = replace(self._use, graphs=taken)
        logger.info(
            "Captured %d graphs of decode steps, of %d to %d requests, and %d of longer ones, "
            "in %.2f s and %.2f GiB",
            len(self._graph_sizes),
            self._graph_sizes[0],
            self._graph_sizes[-1],
            len(self._longer),
            time.monotonic() - started,
            taken / _GIB,
        )

    @contextmanager
    def _room_for(self, what: str, fix: str) -> Iterator[None]:
        """Turn out-of-memory errors into a UsageError with the cause and a fix."""
        try:
            yield
        except Exception as error:
            if not self._device.is_out_of_memory(error):
                raise
            memory = self._device.read_memory()
            raise UsageError(
                f"{what} does not fit into the memory of the {self._device.name}: "
                f"{memory.total / _GIB:.2f} GiB, {self._start.free / _GIB:.2f} of them free at "
                f"start; {fix}"
            ) from None


@dataclass(frozen=True, slots=True)
class _Watched:
    """An answer whose wait notices a broken device."""

    pending: PendingOutput
    device: Device

    def get(self) -> ModelRunnerOutput:
        """Wait for the step; raises EngineDeadError where the device is broken."""
        with _noticing(self.device):
            return self.pending.get()


@contextmanager
def _noticing(device: Device) -> Iterator[None]:
    """Raise EngineDeadError for a broken device, on which every later step would fail."""
    try:
        yield
    except Exception as error:
        if not device.is_broken(error):
            raise
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise EngineDeadError(f"the {device.name} failed: {reason}") from error
