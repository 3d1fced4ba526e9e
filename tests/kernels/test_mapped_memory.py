"""Mapped memory is zero, aligned, takes no memory before use, and its pieces never overlap."""

from __future__ import annotations

import mmap

import pytest
import torch

from vllm_lite.kernels.cpu import mapped_memory
from vllm_lite.kernels.cpu.mapped_memory import HUGE_PAGE, MappedPool, empty_on_host, map_zeros


@pytest.mark.parametrize("size", [1, 4096, HUGE_PAGE, 5 * HUGE_PAGE + 3])
def test_a_mapping_is_zero_and_starts_a_huge_page(size: int) -> None:
    memory = map_zeros(size)
    assert memory.shape == (size,) and memory.dtype == torch.uint8
    assert memory.data_ptr() % HUGE_PAGE == 0 and not memory.any()
    memory.fill_(7)
    assert bool((memory == 7).all())


@pytest.mark.parametrize("shape", [(3, 5), (1024, 1025)])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_large_tensors_fill_huge_pages(shape: tuple[int, int], dtype: torch.dtype) -> None:
    tensor = empty_on_host(shape, dtype)
    assert tensor.shape == shape and tensor.dtype is dtype and tensor.is_contiguous()
    assert tensor.nbytes < HUGE_PAGE or tensor.data_ptr() % HUGE_PAGE == 0
    assert bool((tensor.fill_(7) == 7).all())
    with pytest.raises(RuntimeError, match="memory"):
        empty_on_host((1 << 55,), dtype)


def test_mapping_more_than_the_address_space_raises() -> None:
    with pytest.raises((OSError, OverflowError)):
        map_zeros(1 << 62)


def test_systems_without_huge_pages_use_plain_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(mmap, "MADV_HUGEPAGE", raising=False)
    assert not map_zeros(100).any()


def test_pieces_never_overlap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mapped_memory, "_POOL_BYTES", 1 << 16)
    pool = MappedPool()
    sizes = [1, 64, 65, 30_000, 40_000, 20_000, 100_000, 7, 0, 30_000]
    pieces = [pool.take(size) for size in sizes]
    for number, piece in enumerate(pieces):
        assert piece.data_ptr() % 64 == 0 and not piece.any()
        piece.fill_(number + 1)
    for number, (piece, size) in enumerate(zip(pieces, sizes, strict=True)):
        assert piece.shape == (size,) and bool((piece == number + 1).all())


def test_pieces_are_written_within_inference_mode_or_not() -> None:
    pool = MappedPool()
    with torch.inference_mode():
        pieces = [pool.take(64), map_zeros(64)]
    pieces += [pool.take(64), map_zeros(64)]
    with torch.inference_mode():
        for piece in pieces:
            piece[:32] = 1
    for piece in pieces:
        piece[:32] = 2
        assert bool((piece[:32] == 2).all())
