"""Two ranks that each hold a part compute together what one computes alone."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from gguf import GGMLQuantizationType as GGML
from torch import Tensor

from tests.models import test_gguf
from tests.models import test_quantized_checkpoints as checkpoints
from tests.models.checkpoints import make_model, save
from tests.models.families import FAMILIES, UNDIVIDED
from tests.models.quantized_checkpoints import write_pair
from tests.models.runner import PagedRunner, load
from tests.models.test_aqlm import FORMS as AQLM
from tests.models.test_aqlm import written
from tests.models.test_integer_checkpoints import FORMATS
from tests.models.test_quantized import assert_near
from tests.models.test_quantized_experts import SIZES as EXPERTS
from tests.models.test_stored_codes import CASES
from vllm_lite.distributed.groups import Shard, head_shards, in_turn, tensor_parallel
from vllm_lite.distributed.shared_memory import SharedMemoryGroup
from vllm_lite.errors import CheckpointError, UsageError
from vllm_lite.kernels.reference import collectives as reference_collectives
from vllm_lite.models.interfaces import CausalLM

IDS = [5, 9, 2, 77, 130, 0, 31, 64, 65, 66, 128]


class Meeting:
    """A meeting point where the threads of a group swap tensors."""

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

    def all_reduce(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        return reference_collectives.all_reduce(self.meeting.exchange(self.rank, x), dtype)

    def all_gather(self, x: Tensor, width: int) -> Tensor:
        gathered = reference_collectives.all_gather(self.meeting.exchange(self.rank, x))
        assert gathered.shape[1] == width
        return gathered


_MAMBA2 = {"mamba_n_heads": 8, "mamba_d_head": 12, "mamba_n_groups": 4}
# Biases of each kind, tied rows, a key-value head that ranks share.
CHANGES: dict[str, dict[str, Any]] = {
    "llama": {"attention_bias": True, "mlp_bias": True},
    "qwen2": {"tie_word_embeddings": True},
    "qwen3": {"num_key_value_heads": 1},
    "mamba2": {"num_heads": 8, "head_dim": 12, "n_groups": 4},
    "bamba": _MAMBA2,
    "falcon_h1": _MAMBA2,
    "granite_hybrid": _MAMBA2,
    "nemotron_h": {"mamba_num_heads": 8, "mamba_head_dim": 12, "n_groups": 4},
    "qwen3_5": {"linear_num_key_heads": 4},
    "qwen3_5_moe": {"linear_num_key_heads": 4},
    "qwen3_next": {"linear_num_key_heads": 4},
    "zamba2": {"hidden_size": 24, "n_mamba_heads": 8, "mamba_ngroups": 4},
    "gpt_neox": {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 4},
}


@pytest.mark.parametrize("family", UNDIVIDED)
def test_what_does_not_divide_is_refused(family: str, tmp_path: Path) -> None:
    save(make_model(family), tmp_path)
    fd = os.memfd_create("ranks")
    with (
        tensor_parallel(SharedMemoryGroup(fd, 0, 2)),
        pytest.raises(CheckpointError, match="use --tensor-parallel-size 1"),
    ):
        load(tmp_path)
    os.close(fd)


@pytest.mark.parametrize("size", [2, pytest.param(4, marks=pytest.mark.families)])
@pytest.mark.parametrize("family", [name for name in FAMILIES if name not in UNDIVIDED])
def test_ranks_together_equal_one(family: str, size: int, tmp_path: Path) -> None:
    save(make_model(family, **CHANGES.get(family, {})), tmp_path)
    alone = load(tmp_path)
    want = PagedRunner(alone).step({"a": IDS})["a"]
    hidden_size = CHANGES.get(family, {}).get("hidden_size", 48)
    fd = os.memfd_create("ranks")
    models = []
    for rank in range(size):
        with tensor_parallel(SharedMemoryGroup(fd, rank, size)):
            models.append(load(tmp_path))
    os.close(fd)
    whole, own = alone.kv_cache_spec(), models[0].kv_cache_spec()
    for layer, part in zip(whole.layers, own.layers, strict=True):
        assert part.num_kv_heads == max(1, layer.num_kv_heads // size)
    for state, share in zip(whole.states, own.states, strict=True):
        assert share.num_bytes * size == state.num_bytes

    def run(model: CausalLM) -> list[Tensor]:
        logits = PagedRunner(model, is_recorded=True).step({"a": IDS})["a"]
        hidden = torch.randn(3, hidden_size, generator=torch.Generator().manual_seed(1))
        return [logits.clone(), *model.greedy_tokens(hidden)]

    with ThreadPoolExecutor(size) as pool:
        results = list(pool.map(run, models))
    for result in results:
        torch.testing.assert_close(result[0], want, atol=1e-4, rtol=0)
        assert all(torch.equal(a, b) for a, b in zip(result, results[0], strict=True))
    torch.testing.assert_close(results[0][1:], list(run(alone)[1:]))


def test_the_lowest_of_equal_tokens_wins(tmp_path: Path) -> None:
    model = make_model("llama")
    with torch.no_grad():
        model.lm_head.weight[70:] = model.lm_head.weight[:61]
    save(model, tmp_path)
    hidden = torch.randn(40, 48)
    alone = load(tmp_path).greedy_tokens(hidden)
    meeting, models = Meeting(2), []
    for rank in range(2):
        with tensor_parallel(ThreadRank(rank, 2, meeting)):
            models.append(load(tmp_path))
    with ThreadPoolExecutor(2) as pool:
        for tokens, largest in pool.map(lambda m: m.greedy_tokens(hidden), models):
            assert torch.equal(tokens, alone[0]) and torch.equal(largest, alone[1])


PACKED: dict[str, Any] = {
    **{name: case[:2] for name, case in (checkpoints.PACKED | checkpoints.CODES).items()},
    **{name: case[:2] for name, case in (FORMATS | CASES).items()},
    **{name: (form, written(form["num_codebooks"])) for name, form in AQLM.items()},
}
SHARED = (
    *("awq", "awq gemv", "gptq", "gptq 3", "gptq 8 asymmetric", "marlin", "hqq 4", "qqq"),
    *("float tensors", "int channels", "mxfp8", "W4A16", "NVFP4A16", "MXFP4"),
    *("quark fp6_e2m3", "torchao int4", "torchao int8", "bitsandbytes", "1x16", "2x8"),
)


@pytest.mark.parametrize("name", SHARED)
@pytest.mark.parametrize("family", ["llama", "qwen3_moe"])
def test_ranks_share_a_quantised_checkpoint(name: str, family: str, tmp_path: Path) -> None:
    """Stored weights are worth the same to ranks, whether expanded or kept as they are."""
    settings, quantise = PACKED[name]
    sizes = checkpoints.SQUARE if family == "llama" else EXPERTS | {"moe_intermediate_size": 256}
    packed, plain = write_pair(tmp_path, settings, quantise, family, **sizes)
    want = PagedRunner(load(plain)).step({"a": IDS})["a"]
    kept = PagedRunner(load(packed)).step({"a": IDS})["a"]
    for quantization, alone, tolerance in (("dequantize", want, 1e-4), (None, kept, 0.05)):
        meeting, models = Meeting(2), []
        for rank in range(2):
            with tensor_parallel(ThreadRank(rank, 2, meeting)):
                models.append(load(packed, quantization=quantization))
        with ThreadPoolExecutor(2) as pool:
            for result in pool.map(lambda m: PagedRunner(m).step({"a": IDS})["a"], models):
                if quantization is not None:
                    torch.testing.assert_close(result, alone, atol=tolerance, rtol=0)
                else:  # inputs are rounded by what a rank has of them
                    assert float((result - alone).norm() / alone.norm()) < tolerance


def test_ranks_share_rows_that_stay_quantised(tmp_path: Path) -> None:
    sizes = {**test_gguf.SIZES, "tie_word_embeddings": True}
    model = make_model("llama", **sizes)
    path = test_gguf.write_gguf(tmp_path / "m.gguf", "llama", model, GGML.Q8_0)
    want = PagedRunner(load(path, quantization="gguf")).step({"a": IDS})["a"]
    meeting, models = Meeting(2), []
    for rank in range(2):
        with tensor_parallel(ThreadRank(rank, 2, meeting)):
            models.append(load(path, quantization="gguf"))
    with ThreadPoolExecutor(2) as pool:
        for result in pool.map(lambda m: PagedRunner(m).step({"a": IDS})["a"], models):
            # A sum in another order may round an activation to the next byte.
            assert_near(result, want, 0.02)
    path = test_gguf.write_gguf(tmp_path / "k.gguf", "llama", model, GGML.Q4_K)
    refused = pytest.raises(CheckpointError, match=r"128 inputs .* not whole Q4_K blocks of 256")
    with tensor_parallel(ThreadRank(0, 2, meeting)), refused:
        load(path, quantization="gguf")


class CountingRank(ThreadRank):
    """Counts its meetings with the others."""

    num_met = 0

    def all_gather(self, x: Tensor, width: int) -> Tensor:
        object.__setattr__(self, "num_met", self.num_met + 1)
        return x.expand(1, width)


@pytest.mark.parametrize(("limit", "turns"), [(1, 5), (2, 3), (5, 1), (9, 1), (None, 1)])
def test_ranks_load_a_few_at_a_time(limit: int | None, turns: int) -> None:
    """All meet between two turns, and each passes in its own."""
    passed = []
    for rank in range(5):
        with tensor_parallel(group := CountingRank(rank, 5, Meeting(5))):
            with in_turn(limit):
                passed.append(group.num_met)
            assert group.num_met == turns - 1
    assert passed == [rank // (limit or 5) for rank in range(5)]


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
