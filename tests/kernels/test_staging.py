"""Weights arrive whole and converted, and no buffer is reused during a copy."""

from __future__ import annotations

import pytest
import torch

from vllm_lite.kernels.gpu.staging import Stage, write_weights


class Fences:
    """Fences that count what was recorded and not yet waited for."""

    def __init__(self) -> None:
        self.waits = 0

    def make(self) -> Fences.One:
        return Fences.One(self)

    class One:
        def __init__(self, all_of_them: Fences) -> None:
            self._all, self._is_recorded = all_of_them, False

        def record(self) -> None:
            assert not self._is_recorded, "the buffer was used again before its copy was over"
            self._is_recorded = True

        def synchronize(self) -> None:
            self._all.waits += self._is_recorded
            self._is_recorded = False


@pytest.mark.parametrize(
    "shape", [(), (0, 4), (1,), (1000,), (7, 3), (100, 5), (3, 200, 4), (2, 999)]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8])
def test_any_shape_is_copied(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    fences = Fences()
    stage = Stage(lambda size: torch.empty(size, dtype=torch.uint8), fences.make, num_bytes=256)
    source = (torch.randn(shape) * 50).to(torch.float32)
    target = torch.zeros(shape, dtype=dtype)
    stage.write(target, source)
    assert torch.equal(target, source.to(dtype))
    assert (fences.waits > 0) == (target.nbytes > 512)


def test_a_part_of_a_fused_weight_is_written_in_place() -> None:
    stage = Stage(lambda size: torch.empty(size, dtype=torch.uint8), Fences().make, num_bytes=64)
    fused = torch.zeros(10, 6)
    stage.write(fused[2:7], torch.ones(5, 6))
    stage.write(fused[:, 4:], torch.full((10, 2), 3.0))
    assert fused[:, :4].sum() == 20 and fused[:, 4:].eq(3).all()


def test_a_scalar_is_broadcast() -> None:
    stage = Stage(lambda size: torch.empty(size, dtype=torch.uint8), Fences().make, num_bytes=64)
    scales = torch.zeros(3)
    stage.write(scales, torch.tensor(2.0))
    assert scales.tolist() == [2.0] * 3


def test_cpu_copies_need_no_buffers() -> None:
    target = torch.zeros(3)
    write_weights(target, torch.arange(3))
    assert target.tolist() == [0, 1, 2]
