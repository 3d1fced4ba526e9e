"""The interface of a GPU worker's device: `cuda_device`, or a stand-in in tests."""

from __future__ import annotations

from typing import Protocol

import torch

from vllm_lite.core.memory_budget import DeviceMemory
from vllm_lite.worker.decode_graphs import GraphMaker


class Device(Protocol):
    """One device."""

    @property
    def name(self) -> str:
        """The device's name for the log."""

    @property
    def torch_device(self) -> torch.device:
        """The device of its tensors."""

    def read_memory(self) -> DeviceMemory:
        """Its memory once all launched work is done."""

    def trim_memory(self) -> None:
        """Release the allocator's unused memory and reset its peak."""

    def make_graph_maker(self) -> GraphMaker:
        """A recorder of work, whose graphs share memory: they run one after another."""

    def is_out_of_memory(self, error: BaseException) -> bool:
        """Whether an error means that the device ran out of memory."""

    def is_broken(self, error: BaseException) -> bool:
        """Whether an error means that the device can do no more work for this process."""
