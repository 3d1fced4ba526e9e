"""Rows packed as they are read give the bytes of a weight that is packed as a whole."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.models.checkpoints import make_model, save
from tests.models.runner import load
from vllm_lite.errors import CheckpointError
from vllm_lite.quantization.method import StoredTensor
from vllm_lite.quantization.storage import stored_weights
from vllm_lite.quantization.unquantized import UnquantizedLinearMethod


def packed(path: Path, dtype: str) -> list[Tensor]:
    return [weight.data for weight in stored_weights(load(path, dtype))]


# Fused layers of parts that are stored apart, together, and with their inputs first; experts.
@pytest.mark.parametrize("family", ["llama", "phi3", "gpt2", "qwen3_moe", "granite_moe"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_bytes_are_those_of_whole_weights(
    family: str, dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = save(make_model(family), tmp_path)
    plain: list[Tensor] = []
    create = UnquantizedLinearMethod.create_weights

    def watched(self: UnquantizedLinearMethod, *sizes: int) -> dict[str, StoredTensor]:
        made = create(self, *sizes)
        plain.append(made["weight"].data.fill_(7))
        return made

    def without_packing(self: UnquantizedLinearMethod, *sizes: int) -> dict[str, StoredTensor]:
        return {name: replace(one, packing=None) for name, one in create(self, *sizes).items()}

    monkeypatch.setattr(UnquantizedLinearMethod, "create_weights", watched)
    found = packed(path, dtype)
    assert sum(bool((one == 7).all()) for one in plain) >= len(plain) - 1  # but the embedding's
    monkeypatch.setattr(UnquantizedLinearMethod, "create_weights", without_packing)
    expected = packed(path, dtype)
    assert len(found) == len(expected) > 0
    assert all(map(torch.equal, found, expected))


@pytest.mark.parametrize("value", [math.nan, -math.inf, 1e30])
def test_a_number_that_is_not_usable_is_named_with_its_tensor(value: float, tmp_path: Path) -> None:
    path = save(make_model("llama"), tmp_path)
    tensors = load_file(path / "model.safetensors")
    name = "model.layers.1.self_attn.v_proj.weight"
    tensors[name][3, 5] = value
    save_file(tensors, path / "model.safetensors", {"format": "pt"})
    with pytest.raises(CheckpointError) as caught:
        load(path, "bfloat16")
    assert f"model.safetensors: the tensor {name!r} holds numbers as large as" in str(caught.value)
