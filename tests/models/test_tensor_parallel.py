"""Two ranks that each hold a part compute together what one computes alone."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.models import test_quantized_checkpoints as checkpoints
from tests.models.checkpoints import make_model, save
from tests.models.quantized_checkpoints import write_pair
from tests.models.runner import PagedRunner, load
from vllm_lite.distributed.groups import Shard, head_shards, tensor_parallel
from vllm_lite.errors import UsageError

IDS = [5, 9, 2, 77, 130, 0, 31, 64, 65, 66, 128]


class Meeting:
    """Where the threads of a group swap tensors."""

    def __init__(self, size: int) -> None:
        self._barrier = threading.Barrier(size, timeout=30)
        self._parts: list[Tensor | None] = [None] * size

    def exchange(self, rank: int, part: Tensor) -> list[Tensor]:
        self._parts[rank] = part.clone()
        self._barrier.wait()
        parts = [part for part in self._parts if part is not None]
        self._barrier.wait()
        return parts


@dataclass(frozen=True)
class ThreadRank:
    rank: int
    size: int
    meeting: Meeting

    def all_reduce(self, x: Tensor) -> Tensor:
        return torch.stack(self.meeting.exchange(self.rank, x)).sum(0)

    def all_gather(self, x: Tensor) -> Tensor:
        return torch.cat(self.meeting.exchange(self.rank, x), dim=-1)


@pytest.mark.parametrize(
    ("family", "changes", "size"),
    [
        ("llama", {"attention_bias": True, "mlp_bias": True}, 2),
        ("qwen2", {"tie_word_embeddings": True}, 4),
        ("qwen3", {"num_key_value_heads": 1}, 2),
        ("qwen3_moe", {}, 2),
    ],
)
def test_ranks_together_equal_one(
    family: str, changes: dict[str, Any], size: int, tmp_path: Path
) -> None:
    save(make_model(family, **changes), tmp_path)
    alone = load(tmp_path)
    want = PagedRunner(alone).step({"a": IDS})["a"]

    meeting = Meeting(size)
    models = []
    for rank in range(size):
        with tensor_parallel(ThreadRank(rank, size, meeting)):
            models.append(load(tmp_path))
    kv_heads = alone.kv_cache_spec().layers[0].num_kv_heads
    assert models[0].kv_cache_spec().layers[0].num_kv_heads == max(1, kv_heads // size)
    with ThreadPoolExecutor(size) as pool:
        results = list(pool.map(lambda m: PagedRunner(m).step({"a": IDS})["a"], models))
    for result in results:
        torch.testing.assert_close(result, want, atol=1e-4, rtol=0)


@pytest.mark.parametrize("name", ["awq", "gptq", "float tensors", "int channels"])
def test_ranks_share_a_quantised_checkpoint(name: str, tmp_path: Path) -> None:
    settings, quantise, *_ = (checkpoints.PACKED | checkpoints.CODES)[name]
    packed, plain = write_pair(tmp_path, settings, quantise, **checkpoints.SQUARE)
    want = PagedRunner(load(plain)).step({"a": IDS})["a"]
    meeting, models = Meeting(2), []
    for rank in range(2):
        with tensor_parallel(ThreadRank(rank, 2, meeting)):
            models.append(load(packed, quantization="dequantize"))
    with ThreadPoolExecutor(2) as pool:
        for result in pool.map(lambda m: PagedRunner(m).step({"a": IDS})["a"], models):
            torch.testing.assert_close(result, want, atol=1e-4, rtol=0)


def test_a_group_is_not_shared_by_ranks() -> None:
    assert Shard(96, 32, 64).in_items(32) == Shard(3, 1, 2)
    assert Shard(100, 64, 36).in_items(32) == Shard(4, 2, 2)  # the last may be less than whole
    for shard in (Shard(96, 16, 32), Shard(96, 0, 48)):
        with pytest.raises(UsageError, match="are no whole groups of 32"):
            shard.in_items(32)


def test_sizes_that_do_not_divide_are_refused() -> None:
    with tensor_parallel(ThreadRank(0, 3, Meeting(3))):
        with pytest.raises(UsageError, match="attention heads"):
            head_shards(8, 3)
        with pytest.raises(UsageError, match="key-value heads"):
            head_shards(9, 2)
        assert head_shards(9, 3)[1] == Shard(3, 0, 1)


def test_alone_a_rank_holds_everything() -> None:
    assert head_shards(8, 2) == (Shard.whole(8), Shard.whole(2))
