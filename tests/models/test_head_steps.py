"""Norms, rotation and the write to the cache are one operation on a GPU, and change no bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.models.checkpoints import make_model, save
from tests.models.families import CASES
from tests.models.gpu_ops import reference_ops, selected, triton_ops
from tests.models.runner import PagedRunner, load
from vllm_lite.models import decoder

IDS = [5, 9, 2, 77, 31]
# With norms or without, of weights in float32 too; parts of heads, and pairs of neighbours;
# projections with gates, and clipped ones; states beside attention.
USUAL = (
    *("llama", "qwen3", "gemma3", "gpt_neox", "cohere", "glm", "olmo-clip", "qwen3_next"),
    *("falcon_h1", "gpt_oss"),
)
# Norms after rotation, of all heads as one row, by head, and of deviations from a mean; scaled
# queries; values of a size of their own; no rotation.
OTHERS = (
    *("nanochat", "olmo2", "cohere-by-head", "stablelm-odd", "ministral3", "mimo_v2_flash"),
    "gpt2",
)


def logits(path: Path, operations: Any, **options: Any) -> torch.Tensor:
    """Of a prompt and two more tokens."""
    with selected(operations):
        runner = PagedRunner(load(path, **options))
    steps = [runner.step({"a": IDS, "b": IDS[:2]}), runner.step({"a": [8], "b": [3]})]
    return torch.cat([rows for step in steps for rows in step.values()])


class Counted:
    """Operations, and how often one operation made all steps."""

    def __init__(self, operations: Any) -> None:
        self._operations, self.count = operations, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._operations, name)

    def rotate_and_cache(self, *arguments: Any) -> None:
        self.count += 1
        self._operations.rotate_and_cache(*arguments)


def check(path: Path, operations: Any, is_one: bool, **options: Any) -> None:
    counted = Counted(operations)
    got = logits(path, counted, **options)
    assert (counted.count > 0) == is_one
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decoder, "rotated_write", lambda *_: None)
        assert torch.equal(got, logits(path, operations, **options))


def saved(case: str, folder: Path) -> Path:
    family, changes = CASES[case]
    return save(make_model(family, **changes), folder)


@pytest.mark.parametrize("case", USUAL)
def test_usual_layers_take_one_operation(case: str, tmp_path: Path) -> None:
    check(saved(case, tmp_path), reference_ops(), True)


@pytest.mark.parametrize("case", OTHERS)
def test_other_layers_take_their_steps_one_by_one(case: str, tmp_path: Path) -> None:
    check(saved(case, tmp_path), reference_ops(), False)


@pytest.mark.parametrize("kind", ["fp8", "int8", "bfloat16"])
def test_caches_of_other_types_are_written_apart(kind: str, tmp_path: Path) -> None:
    check(save(make_model("qwen3"), tmp_path), reference_ops(), False, kv_cache_dtype=kind)


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_a_gpu_s_kernel_changes_no_bit(family: str, tmp_path: Path) -> None:
    changes: dict[str, Any] = {"num_hidden_layers": 1, "intermediate_size": 32}
    check(save(make_model(family, **changes), tmp_path), triton_ops(), True)
