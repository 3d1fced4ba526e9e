"""An NVIDIA GPU through torch: its memory and CUDA graphs.

Nothing else in the package captures graphs or reads a GPU's memory.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from vllm_lite.core.memory_budget import DeviceMemory
from vllm_lite.errors import UsageError

# The oldest compute capability with bfloat16 GEMMs and tuned tiles: that of the A100.
_OLDEST = (8, 0)


class CudaDevice:
    """The first GPU that this process sees."""

    def __init__(self) -> None:
        """Raises UsageError without a device that this package can use."""
        _check_torch()
        self.torch_device = torch.device("cuda", 0)
        torch.cuda.set_device(self.torch_device)
        capability = torch.cuda.get_device_capability(self.torch_device)
        self.name = torch.cuda.get_device_name(self.torch_device)
        if capability < _OLDEST:
            raise UsageError(
                f"--device cuda: the {self.name} has compute capability "
                f"{capability[0]}.{capability[1]}, and the kernels need 8.0 or newer; "
                "use --device cpu"
            )
        # One for all captures: cuBLAS keeps a workspace for each stream that it ever worked on.
        self._capturing = torch.cuda.Stream()  # type: ignore[no-untyped-call]

    def read_memory(self) -> DeviceMemory:
        """The driver's and torch's numbers, once all launched work is done."""
        torch.cuda.synchronize(self.torch_device)
        free, total = torch.cuda.mem_get_info(self.torch_device)
        return DeviceMemory(
            total=total,
            free=free,
            reserved=torch.cuda.memory_reserved(self.torch_device),
            peak=torch.cuda.max_memory_reserved(self.torch_device),
        )

    def trim_memory(self) -> None:
        """Release unused memory; what other streams used is free once they have caught up."""
        torch.cuda.synchronize(self.torch_device)
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(self.torch_device)

    def make_graph_maker(self) -> CudaGraphMaker:
        """Graphs in a memory pool of their own."""
        return CudaGraphMaker(self._capturing)

    def is_out_of_memory(self, error: BaseException) -> bool:
        """Whether torch's allocator, or the driver loading a kernel, ran out of memory."""
        return isinstance(error, torch.OutOfMemoryError) or (
            _is_of_driver(error) and "out of memory" in str(error)
        )

    def is_broken(self, error: BaseException) -> bool:
        """Whether CUDA reported an error: all later calls of this process fail too."""
        return _is_of_driver(error) and not self.is_out_of_memory(error)


class CudaGraphMaker:
    """CUDA graphs in one memory pool, captured on one stream."""

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self._stream = stream
        self._pool = torch.cuda.graph_pool_handle()

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        """Run `work` once, record it, and return a replay in the caller's current stream.

        The first run is on the capturing stream: it compiles and loads kernels and makes cuBLAS
        allocate its workspace, none of which may happen while recording.
        """
        current, stream = torch.cuda.current_stream(), self._stream
        graph = torch.cuda.CUDAGraph()
        stream.wait_stream(current)
        with torch.cuda.stream(stream):
            work()
            with _no_garbage_collection():
                # Other threads of the process may call the driver meanwhile.
                graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
                try:
                    work()
                finally:
                    graph.capture_end()
        current.wait_stream(stream)
        return graph.replay


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """A cycle's end could free events or graphs of the driver, which breaks a capture."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _is_of_driver(error: BaseException) -> bool:
    # Triton raises the driver's errors as a RuntimeError with this text.
    return isinstance(error, torch.AcceleratorError) or str(error).startswith("Triton Error [CUDA]")


def _check_torch() -> None:
    """Raise UsageError unless torch finds a GPU and Triton is installed."""
    if torch.version.cuda is None:
        raise UsageError(
            f"--device cuda: this torch ({torch.__version__}) is built for CPUs; install a build "
            "for CUDA (https://pytorch.org/get-started/locally), or use --device cpu"
        )
    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        raise UsageError(
            f"--device cuda: torch reaches no GPU ({reason}); check nvidia-smi and "
            "CUDA_VISIBLE_DEVICES, or use --device cpu"
        ) from None
