"""CudaDevice's calls to CUDA and their order, from a record of them."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from vllm_lite.core.memory_budget import DeviceMemory
from vllm_lite.errors import UsageError
from vllm_lite.worker import cuda_device
from vllm_lite.worker.cuda_device import CudaDevice


class RecordedStream:
    def __init__(self, cuda: RecordedCuda, name: str) -> None:
        self._cuda, self.name = cuda, name

    def wait_stream(self, other: RecordedStream) -> None:
        self._cuda.calls.append(f"{self.name} waits for {other.name}")


class RecordedGraph:
    def __init__(self, cuda: RecordedCuda) -> None:
        self._cuda = cuda

    def capture_begin(self, pool: object, capture_error_mode: str) -> None:
        assert not gc.isenabled()
        self._cuda.calls.append(f"begin {pool} {capture_error_mode} on {self._cuda.current.name}")

    def capture_end(self) -> None:
        self._cuda.calls.append("end")

    def replay(self) -> None:
        self._cuda.calls.append(f"replay on {self._cuda.current.name}")


class RecordedCuda:
    """The part of torch.cuda that is used, on a GPU that is not there."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.capability = (9, 0)
        self.fault: str | None = None
        self.current = self.main = RecordedStream(self, "main")
        self._num_streams = self._num_pools = 0

    def init(self) -> None:
        if self.fault:
            raise RuntimeError(self.fault)

    def Stream(self) -> RecordedStream:
        self._num_streams += 1
        return RecordedStream(self, f"side {self._num_streams}")

    def CUDAGraph(self) -> RecordedGraph:
        return RecordedGraph(self)

    def graph_pool_handle(self) -> str:
        self._num_pools += 1
        return f"pool {self._num_pools}"

    def current_stream(self) -> RecordedStream:
        return self.current

    @contextmanager
    def stream(self, stream: RecordedStream) -> Iterator[None]:
        before, self.current = self.current, stream
        yield
        self.current = before

    def get_device_capability(self, _: object) -> tuple[int, int]:
        return self.capability

    def get_device_name(self, _: object) -> str:
        return "Recorded"

    def mem_get_info(self, _: object) -> tuple[int, int]:
        return 600, 1000

    def memory_reserved(self, _: object) -> int:
        return 300

    def max_memory_reserved(self, _: object) -> int:
        return 350

    def __getattr__(self, name: str) -> Any:
        return lambda *_: self.calls.append(name)


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> RecordedCuda:
    recorded = RecordedCuda()
    monkeypatch.setattr(cuda_device.torch, "cuda", recorded)
    monkeypatch.setattr(cuda_device.torch.version, "cuda", "13.0")
    return recorded


def test_graph_is_captured_after_a_first_run(cuda: RecordedCuda) -> None:
    device = CudaDevice()
    maker = device.make_graph_maker()
    cuda.calls.clear()
    replay = maker.capture(lambda: cuda.calls.append(f"work on {cuda.current.name}"))
    assert cuda.calls == [
        "side 1 waits for main",
        "work on side 1",
        "begin pool 1 thread_local on side 1",
        "work on side 1",
        "end",
        "main waits for side 1",
    ]
    assert gc.isenabled()
    cuda.calls.clear()
    replay()
    assert cuda.calls == ["replay on main"]
    # Another maker has another pool, and no stream whose workspace would be one more.
    device.make_graph_maker().capture(lambda: None)
    assert "begin pool 2 thread_local on side 1" in cuda.calls


def test_a_capture_that_fails_is_ended(cuda: RecordedCuda) -> None:
    maker, runs = CudaDevice().make_graph_maker(), iter([None])
    with pytest.raises(StopIteration):
        maker.capture(lambda: next(runs))
    assert cuda.calls[-1] == "end" and gc.isenabled()


def test_memory_is_read_when_the_device_is_done(cuda: RecordedCuda) -> None:
    device = CudaDevice()
    cuda.calls.clear()
    assert device.read_memory() == DeviceMemory(total=1000, free=600, reserved=300, peak=350)
    device.trim_memory()
    assert cuda.calls == [
        "synchronize",
        "synchronize",
        "empty_cache",
        "reset_peak_memory_stats",
    ]


def test_a_gpu_that_will_not_do_is_named(cuda: RecordedCuda, monkeypatch: Any) -> None:
    cuda.capability = (7, 5)
    with pytest.raises(UsageError, match=r"the Recorded has compute capability 7\.5.*--device cpu"):
        CudaDevice()
    cuda.fault = "No CUDA GPUs are available\nmore"
    with pytest.raises(UsageError, match=r"no GPU \(No CUDA GPUs are available\).*--device cpu$"):
        CudaDevice()
    monkeypatch.setattr(cuda_device.torch.version, "cuda", None)
    with pytest.raises(UsageError, match=r"built for CPUs.*--device cpu$"):
        CudaDevice()


def test_kinds_of_errors_are_distinguished(cuda: RecordedCuda) -> None:
    device = CudaDevice()
    broken = [
        torch.AcceleratorError("CUDA error: an illegal memory access was encountered"),
        RuntimeError("Triton Error [CUDA]: an illegal memory access was encountered"),
    ]
    lacking = [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"),
        RuntimeError("Triton Error [CUDA]: out of memory"),
    ]
    assert all(device.is_broken(e) and not device.is_out_of_memory(e) for e in broken)
    assert all(device.is_out_of_memory(e) and not device.is_broken(e) for e in lacking)
    assert not device.is_broken(ValueError("else")) and not device.is_out_of_memory(KeyError())
