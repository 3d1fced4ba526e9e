"""Launches find compiled kernels by all that Triton may look at."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("triton")

from triton.tools.tensor_descriptor import TensorDescriptor

from vllm_lite.kernels.gpu.triton import launch as module
from vllm_lite.kernels.gpu.triton.launch import launch


class Kernel:
    """Stands for a compiled kernel and for what compiles it; notes its launches."""

    def __init__(self) -> None:
        self.params = [SimpleNamespace(name=name) for name in ("out", "x", "size", "BLOCK")]
        self.compiled: list[tuple[Any, ...]] = []
        self.launched: list[tuple[Any, ...]] = []

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        def run(*arguments: Any, **constants: Any) -> Any:
            self.compiled.append((grid, arguments, constants))
            return _Compiled(self)

        return run


class _Compiled:
    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        return lambda *arguments: self.kernel.launched.append((grid[:3], arguments))


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Kernel:
    monkeypatch.setattr(module, "JITFunction", Kernel)
    monkeypatch.setattr(module, "_found", {})
    return Kernel()


def test_equal_launches_share_a_compiled_kernel(kernel: Kernel) -> None:
    x = torch.zeros(64, dtype=torch.bfloat16)
    for _ in range(3):
        launch(kernel, (2,), torch.empty_like(x), x, 64, BLOCK=16, num_warps=4)
    assert len(kernel.compiled) == 1 and len(kernel.launched) == 2
    grid, arguments = kernel.launched[0]
    assert grid == (2, 1, 1) and arguments[2:] == (64, 16)


@pytest.mark.parametrize(
    "other",
    [
        (torch.zeros(64), 64, 16, 4),
        (torch.zeros(65, dtype=torch.bfloat16)[1:], 64, 16, 4),
        (torch.zeros(64, dtype=torch.bfloat16), 1, 16, 4),
        (torch.zeros(64, dtype=torch.bfloat16), 64, 32, 4),
        (torch.zeros(64, dtype=torch.bfloat16), 64, 16, 8),
        ((torch.zeros(64, dtype=torch.bfloat16),), 64, 16, 4),
        (TensorDescriptor(torch.zeros(2, 64), [2, 64], [64, 1], [1, 64]), 64, 16, 4),
    ],
    ids=["type", "alignment", "number", "constant", "option", "tuple", "descriptor"],
)
def test_what_differs_is_compiled_anew(kernel: Kernel, other: tuple[Any, ...]) -> None:
    out = torch.zeros(64)
    for x, size, block, warps in ((torch.zeros(64, dtype=torch.bfloat16), 64, 16, 4), other):
        launch(kernel, (2,), out, x, size, BLOCK=block, num_warps=warps)
    assert len(kernel.compiled) == 2 and not kernel.launched


def test_forms_are_few(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST", 3)
    for size in range(10):
        launch(kernel, (1,), torch.zeros(4), torch.zeros(4), size, BLOCK=4)
        assert len(module._found) <= 3
