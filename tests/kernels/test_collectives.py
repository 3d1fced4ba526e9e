"""Collectives through shared memory give every rank the reference's bits and never hang."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import pytest
import torch
from torch import Tensor

from vllm_lite.distributed.shared_memory import SharedMemoryGroup
from vllm_lite.kernels.cpu import ops as cpu
from vllm_lite.kernels.cpu.program import record_step
from vllm_lite.kernels.reference import collectives as reference_collectives
from vllm_lite.kernels.reference.ops import Ops as reference

T = TypeVar("T")

SLOT = 1 << 18  # numbers of a rank that go through at once


@pytest.fixture
def group_fd() -> Iterator[int]:
    fd = os.memfd_create("ranks")
    yield fd
    os.close(fd)


def each_rank(fd: int, size: int, work: Callable[[SharedMemoryGroup], T]) -> list[T]:
    """Results of `work` on every rank, each a thread with a mapping of its own."""
    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(lambda rank: work(SharedMemoryGroup(fd, rank, size)), range(size)))


def parts(size: int, shape: tuple[int, int], dtype: torch.dtype = torch.float32) -> list[Tensor]:
    return [torch.randn(shape).to(dtype) for _ in range(size)]


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("shape", [(1, 7), (5, 192), (300, 1000), (3, SLOT)])
def test_all_reduce(size: int, shape: tuple[int, int], group_fd: int) -> None:
    types = [(torch.float32, torch.bfloat16), (torch.bfloat16, torch.float32)] * 2
    brought = [(parts(size, shape, given), made) for given, made in types]
    want = [reference_collectives.all_reduce(each, made) for each, made in brought]
    for result in each_rank(
        group_fd, size, lambda g: [g.all_reduce(each[g.rank], made) for each, made in brought]
    ):
        assert all(torch.equal(a, b) for a, b in zip(result, want, strict=True))


@pytest.mark.parametrize(("size", "width"), [(2, 7), (3, 7), (4, 1001), (2, 2 * SLOT)])
def test_all_gather(size: int, width: int, group_fd: int) -> None:
    part = -(-width // size)
    whole = torch.randn(3, width)
    brought = [whole[:, i * part : (i + 1) * part].contiguous() for i in range(size)]
    assert torch.equal(reference_collectives.all_gather(brought), whole)
    for result in each_rank(group_fd, size, lambda g: g.all_gather(brought[g.rank], width)):
        assert torch.equal(result, whole)


def test_a_row_larger_than_a_slot_is_refused(group_fd: int) -> None:
    group = SharedMemoryGroup(group_fd, 0, 1)
    with pytest.raises(ValueError, match="slot"):
        group.all_reduce(torch.zeros(1, SLOT + 1), torch.float32)
    with pytest.raises(ValueError, match="slot"):
        group.all_gather(torch.zeros(1, SLOT + 1), SLOT + 1)


def test_a_recorded_sum(group_fd: int) -> None:
    tables = parts(2, (11, 64))
    ids = torch.tensor([3, 10, 0])

    def replayed(group: SharedMemoryGroup) -> Tensor:
        recorded = record_step(
            lambda step: group.all_reduce(
                cpu.embedding(step["input_ids"], tables[group.rank]), torch.bfloat16
            ),
            step_of(ids[:2]),
            max_tokens=8,
        )
        return torch.cat([recorded.run(step_of(ids)).clone() for _ in range(3)])

    rows = [reference.embedding(ids, table) for table in tables]
    want = reference_collectives.all_reduce(rows, torch.bfloat16).repeat(3, 1)
    assert all(torch.equal(result, want) for result in each_rank(group_fd, 2, replayed))


def step_of(ids: Tensor) -> dict[str, Tensor]:
    count = len(ids)
    return {
        "input_ids": ids,
        "positions": torch.arange(count),
        "slot_mapping": torch.arange(count),
        "block_table": torch.zeros(1, 1, dtype=torch.int32),
        "query_start_loc": torch.tensor([0, count], dtype=torch.int32),
        "seq_lens": torch.tensor([count], dtype=torch.int32),
    }


def test_ranks_of_a_broken_group_raise(group_fd: int) -> None:
    def run(group: SharedMemoryGroup) -> str:
        if group.rank == 1:
            time.sleep(0.05)  # rank 0 sleeps in its call by now, or will find out
            group.fail()
            return "failed"
        try:
            group.all_reduce(torch.zeros(1, 8), torch.float32)
        except RuntimeError as error:
            assert group.failed_rank == 1
            return str(error)
        return "went on"

    assert each_rank(group_fd, 2, run) == ["rank 1 of the group failed", "failed"]


@pytest.mark.parametrize("first_row", [0, 20, 47])
def test_a_part_of_a_table(first_row: int) -> None:
    rows, ids = torch.randn(10, 33), torch.randint(0, 60, (100,))
    want = reference.embedding(ids, rows, first_row)
    assert torch.equal(cpu.embedding(ids, rows, first_row), want)
    inside = (ids >= first_row) & (ids < first_row + 10)
    assert torch.equal(want[inside], rows[ids[inside] - first_row])
    assert not want[~inside].any()
