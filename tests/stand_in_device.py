"""A device that is the CPU: work is done when it is given out, and memory is made up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from vllm_lite.core.memory_budget import DeviceMemory

MIB = 1 << 20


class StandInMemoryError(RuntimeError):
    """Raised where the stand-in has too little memory."""


class StandInFault(RuntimeError):
    """The stand-in is broken for good."""


class NoWaits(TorchFunctionMode):
    """Refuses what would make the host wait, were the stand-in a device.

    That is reading a tensor, and making or indexing one by numbers of the host, which torch copies
    as it waits.
    """

    _READS = frozenset(
        ("tolist", "item", "cpu", "__bool__", "__int__", "__float__", "__index__", "nonzero")
    )

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        name = getattr(function, "__name__", "")
        assert name not in self._READS and function is not torch.tensor, name
        if name in ("__getitem__", "__setitem__"):
            index = args[1] if isinstance(args[1], tuple) else (args[1],)
            for part in index:
                is_number = isinstance(part, torch.Tensor) and not part.dim()
                assert not (is_number or isinstance(part, list)), f"{name} by {part}"
        return function(*args, **(kwargs or {}))


class RepeatedWork:
    """In place of graphs: does the work anew at each replay."""

    def __init__(self, device: StandInDevice) -> None:
        self._device = device

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        self._device.num_graphs += 1
        if self._device.num_graphs > self._device.most_graphs:
            raise StandInMemoryError("out of graphs")
        work()
        return work


class StandInDevice:
    """Weights, a step and graphs take of its memory what it is told."""

    name = "stand-in"
    torch_device = torch.device("cpu")

    def __init__(self, total: int = 1024 * MIB, others: int = 0) -> None:
        self.total, self.others = total, others
        self.weights, self.step = 100 * MIB, 50 * MIB
        self.first_graph, self.more_graphs = 20 * MIB, 2 * MIB
        self.most_graphs = 1000
        # Captured by the latest maker: the others' graphs are gone.
        self.num_graphs = 0
        self._num_trims = 0

    def read_memory(self) -> DeviceMemory:
        reserved = self.weights if self._num_trims else 0
        graphs = 0
        if self.num_graphs:
            graphs = self.first_graph + (self.num_graphs - 1) * self.more_graphs
        free = self.total - self.others - reserved - graphs
        return DeviceMemory(self.total, free, reserved, reserved + self.step)

    def trim_memory(self) -> None:
        self._num_trims += 1

    def make_graph_maker(self) -> RepeatedWork:
        self.num_graphs = 0
        return RepeatedWork(self)

    def is_out_of_memory(self, error: BaseException) -> bool:
        return isinstance(error, StandInMemoryError)

    def is_broken(self, error: BaseException) -> bool:
        return isinstance(error, StandInFault)
