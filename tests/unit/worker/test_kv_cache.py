"""The cache's tensors and the tables that point into them."""

from __future__ import annotations

import ctypes
import mmap

import numpy as np
import pytest
import torch

from tests.builders import alike_layers
from vllm_lite.core.kv_plan import KVCachePlan
from vllm_lite.core.kv_spec import KVCacheSpec, LayerCacheSpec
from vllm_lite.errors import UsageError
from vllm_lite.worker.block_table import BlockTables
from vllm_lite.worker.kv_cache import allocate_kv_cache

CPU = torch.device("cpu")


def resident_bytes(tensor: torch.Tensor) -> int:
    """Bytes in memory of the mapping in which `tensor` lies, whatever else the process holds."""
    storage = tensor.untyped_storage()
    num_pages = -(-storage.nbytes() // mmap.PAGESIZE)
    in_memory = (ctypes.c_ubyte * num_pages)()
    libc = ctypes.CDLL(None, use_errno=True)
    address = ctypes.c_void_p(storage.data_ptr())
    assert libc.mincore(address, ctypes.c_size_t(storage.nbytes()), in_memory) == 0
    return sum(page & 1 for page in in_memory) * mmap.PAGESIZE


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_shapes_are_as_planned_and_everything_is_zero(dtype: str) -> None:
    caches = allocate_kv_cache(KVCachePlan(alike_layers(3, 2, 24, dtype), 5, 16, 0), CPU)
    assert len(caches) == 3
    for tensor in (tensor for cache in caches for tensor in cache[:2]):
        assert tensor.shape == (5, 2, 16, 24) and tensor.dtype == getattr(torch, dtype)
        assert tensor[0, 0].is_contiguous() and tensor.data_ptr() % 64 == 0
        assert not tensor.any()


def test_no_two_tensors_share_memory() -> None:
    caches = allocate_kv_cache(KVCachePlan(alike_layers(3, 2, 24, "float32"), 5, 16, 0), CPU)
    tensors = [tensor for cache in caches for tensor in cache[:2]]
    for number, tensor in enumerate(tensors):
        tensor.fill_(number)
    assert all(bool((tensor == number).all()) for number, tensor in enumerate(tensors))


def test_groups_lie_over_each_other_and_layers_of_a_group_do_not() -> None:
    windows = (8, None, 8, 8, 8, None)
    spec = KVCacheSpec(tuple(LayerCacheSpec(2, 24, "float32", window) for window in windows))
    plan = KVCachePlan(spec, 5, 16, 0)
    assert [group.layers for group in plan.groups] == [(1, 5), (0, 2), (3, 4)]
    caches = allocate_kv_cache(plan, CPU)
    assert [cache.group for cache in caches] == [1, 0, 1, 2, 2, 0]
    assert plan.page_bytes == 16 * 2 * spec.layers[0].bytes_per_token
    # A page is one group's at a time.
    for number, cache in enumerate(caches):
        cache.key[cache.group + 1] = cache.value[cache.group + 1] = number + 1.0
    for number, cache in enumerate(caches):
        assert bool((cache.key[cache.group + 1] == number + 1.0).all())
        assert bool((cache.value[cache.group + 1] == number + 1.0).all())


def test_a_reserved_cache_takes_no_memory_yet() -> None:
    spec = alike_layers(4, 8, 128, "float32")
    size = 2000 * 16 * spec.bytes_per_token
    caches = allocate_kv_cache(KVCachePlan(spec, 2000, 16, size), CPU)
    assert size > 1 << 29 and resident_bytes(caches[0][0]) == 0
    # One block of every layer.
    for key, value, _ in caches:
        key[-1] = value[-1] = 1.0
    assert 0 < resident_bytes(caches[0][0]) <= 4 << 20
    assert not caches[0][0][0].any()


def test_a_cache_beyond_all_memory_is_a_usage_error() -> None:
    plan = KVCachePlan(alike_layers(1, 8, 128, "float32"), 1 << 40, 16, 1 << 60)
    with pytest.raises(UsageError, match="--gpu-memory-utilization"):
        allocate_kv_cache(plan, CPU)


def test_slot_mapping_follows_the_blocks() -> None:
    table = BlockTables(num_slots=3, max_blocks=4, block_size=8, windows=[None])
    table.set_row(2, [[5, 9]])
    table.append_row(2, [[7]], 16)
    slots, positions = np.full(4, 2), np.array([0, 7, 8, 23])
    assert table.slot_mapping(slots, positions).tolist() == [[40, 47, 72, 63]]
    assert table.gather(np.array([2, 0]), 17).tolist() == [[[5, 9, 7], [0, 0, 0]]]


def test_a_row_set_anew_keeps_no_block_of_before() -> None:
    table = BlockTables(num_slots=1, max_blocks=4, block_size=8, windows=[None])
    table.set_row(0, [[1, 2, 3, 4]])
    table.set_row(0, [[6]])
    assert table.gather(np.array([0]), 32).tolist() == [[[6, 0, 0, 0]]]


def test_a_block_that_the_window_has_left_is_not_named() -> None:
    # The token at 15 sees 7 to 15, that at 16 sees 8 to 16.
    starts = {15: [1, 2, 3, 4], 16: [0, 2, 3, 4], 23: [0, 2, 3, 4], 24: [0, 0, 3, 4]}
    for start, blocks in starts.items():
        table = BlockTables(num_slots=1, max_blocks=4, block_size=8, windows=[None, 9])
        table.set_row(0, [[5, 6, 7], [1, 2, 3]])
        table.append_row(0, [[8], [4]], start)
        assert table.gather(np.array([0]), 32).tolist() == [[[5, 6, 7, 8]], [blocks]]


def test_a_row_after_one_with_a_window_names_all_its_blocks() -> None:
    table = BlockTables(num_slots=1, max_blocks=4, block_size=8, windows=[9])
    table.set_row(0, [[1, 2, 3]])
    table.append_row(0, [[4]], 24)
    table.set_row(0, [[5, 6]])
    assert table.gather(np.array([0]), 32).tolist() == [[[5, 6, 0, 0]]]


def test_tables_of_each_group_are_dense() -> None:
    table = BlockTables(num_slots=3, max_blocks=4, block_size=8, windows=[None, 9])
    slots = np.array([2, 0, 1])
    for array in (*table.gather(slots, 17), *table.slot_mapping(slots, np.array([0, 7, 8]))):
        assert array.flags.c_contiguous
