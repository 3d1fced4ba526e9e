"""A device that is the CPU: work is done when it is given out, and memory is made up."""

from __future__ import annotations

from collections.abc import Callable

import torch

from vllm_lite.core.memory_budget import DeviceMemory

MIB = 1 << 20


class StandInMemoryError(RuntimeError):
    """Raised where the stand-in has too little memory."""


class StandInFault(RuntimeError):
    """The stand-in is broken for good."""


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
