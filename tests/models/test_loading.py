"""A checkpoint and its model match exactly, or one line says where they do not."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.multiprocessing.reductions import StorageWeakRef

from tests.models.checkpoints import make_model, save
from tests.models.runner import PagedRunner, load
from vllm_lite.errors import CheckpointError
from vllm_lite.quantization.unquantized import UnquantizedLinearMethod

IDS = [5, 9, 2, 77, 130, 0, 31]
NAME = "model.layers.1.mlp.up_proj.weight"
Tensors = dict[str, torch.Tensor]


def logits(path: Path, **options: object) -> torch.Tensor:
    return PagedRunner(load(path, **options)).step({"a": IDS})["a"]


@torch.inference_mode()
def expected(model: torch.nn.Module) -> torch.Tensor:
    return model(torch.tensor([IDS])).logits[0]


def rewrite(path: Path, change: Callable[[Tensors], object]) -> None:
    tensors = load_file(path / "model.safetensors")
    change(tensors)
    save_file(tensors, path / "model.safetensors")


def refusal(path: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        load(path)
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    return save(make_model("llama"), tmp_path)


def test_shards_are_found_by_their_index_and_others_left_alone(tmp_path: Path) -> None:
    reference = make_model("llama")
    save(reference, tmp_path, max_shard_size="30KB")
    index_file = tmp_path / "model.safetensors.index.json"
    index = json.loads(index_file.read_text())
    assert len(set(index["weight_map"].values())) > 2
    # A file that nothing needed lies in is not opened.
    index["weight_map"]["model.layers.0.self_attn.rotary_emb.inv_freq"] = "extra.safetensors"
    index_file.write_text(json.dumps(index))
    (tmp_path / "other.safetensors").write_bytes(b"not a checkpoint")
    torch.testing.assert_close(logits(tmp_path), expected(reference), atol=1e-4, rtol=0)


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    save(make_model("llama"), tmp_path, max_shard_size="30KB")
    victim = sorted(tmp_path.glob("model-*.safetensors"))[1]
    victim.unlink()
    assert victim.name in refusal(tmp_path)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_stored_dtypes_become_the_models(tmp_path: Path, dtype: torch.dtype) -> None:
    reference = make_model("llama")
    with torch.no_grad():
        for parameter in reference.parameters():
            parameter.copy_(parameter.to(dtype))
    save(reference, tmp_path)
    rewrite(tmp_path, lambda t: t.update({name: value.to(dtype) for name, value in t.items()}))
    torch.testing.assert_close(logits(tmp_path), expected(reference), atol=1e-4, rtol=0)


def test_derived_tensors_and_a_tied_head_are_passed_over(tmp_path: Path) -> None:
    reference = make_model("llama", tie_word_embeddings=True)
    save(reference, tmp_path)

    def add(tensors: Tensors) -> None:
        tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(6)
        tensors["lm_head.weight"] = torch.zeros(131, 48)

    rewrite(tmp_path, add)
    torch.testing.assert_close(logits(tmp_path), expected(reference), atol=1e-4, rtol=0)


def test_a_missing_tensor_is_named(tiny: Path) -> None:
    rewrite(tiny, lambda tensors: tensors.pop(NAME))
    assert f"model.safetensors lacks the tensor {NAME!r}" in refusal(tiny)


def test_the_file_that_should_hold_a_tensor_is_named(tmp_path: Path) -> None:
    save(make_model("llama"), tmp_path, max_shard_size="30KB")
    index = tmp_path / "model.safetensors.index.json"
    held = json.loads(index.read_text())["weight_map"]
    path = tmp_path / held[NAME]
    save_file({name: t for name, t in load_file(path).items() if name != NAME}, path)
    assert f"{path} lacks the tensor {NAME!r}" in refusal(tmp_path)
    # Nothing says where it was.
    index.unlink()
    assert f"{tmp_path} lacks the tensor {NAME!r}" in refusal(tmp_path)


def test_an_unexpected_tensor_is_named(tiny: Path) -> None:
    name = "model.layers.0.self_attn.q_proj.bias"
    rewrite(tiny, lambda tensors: tensors.update({name: torch.zeros(48)}))
    assert repr(name) in refusal(tiny)


def test_many_missing_tensors_are_counted(tiny: Path) -> None:
    rewrite(tiny, lambda t: [t.pop(n) for n in list(t) if n.startswith("model.layers.1.")])
    message = refusal(tiny)
    assert "9 tensors" in message
    assert message.count("model.layers.1.") == 3


def test_wrong_shape_is_reported_with_the_right_one(tiny: Path) -> None:
    rewrite(tiny, lambda tensors: tensors.update({NAME: torch.zeros(80, 47)}))
    message = refusal(tiny)
    assert repr(NAME) in message
    assert "[80, 47]" in message and "[80, 48]" in message


def test_an_unsupported_dtype_is_named(tiny: Path) -> None:
    rewrite(tiny, lambda tensors: tensors.update({NAME: tensors[NAME].to(torch.int8)}))
    message = refusal(tiny)
    assert repr(NAME) in message and "I8" in message


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[: len(data) // 2],
        lambda data: data[:5],
        lambda data: b"",
        lambda data: b"\xff" * len(data),
        lambda data: struct.pack("<Q", 1 << 60) + data[8:],
        lambda data: data[:8] + b"{]" + data[10:],
    ],
)
def test_a_damaged_file_is_refused(tiny: Path, damage: Callable[[bytes], bytes]) -> None:
    file = tiny / "model.safetensors"
    file.write_bytes(damage(file.read_bytes()))
    assert str(file) in refusal(tiny)


@pytest.mark.parametrize("text", ["", "[]", '{"weight_map": 3}', '{"weight_map": {"a": "../x"}}'])
def test_a_damaged_index_is_refused(tiny: Path, text: str) -> None:
    (tiny / "model.safetensors").unlink()
    (tiny / "model.safetensors.index.json").write_text(text)
    assert "\n" not in refusal(tiny)


def test_an_index_cannot_lead_out_of_its_directory(tiny: Path) -> None:
    index = {"weight_map": {NAME: "../model.safetensors"}}
    (tiny / "model.safetensors.index.json").write_text(json.dumps(index))
    assert "../model.safetensors" in refusal(tiny)


def test_a_directory_without_weights_says_so(tiny: Path) -> None:
    (tiny / "model.safetensors").unlink()
    assert ".safetensors" in refusal(tiny)


def test_dummy_weights_depend_on_the_seed_alone(tiny: Path) -> None:
    (tiny / "model.safetensors").unlink()
    one, again = (logits(tiny, load_format="dummy", seed=1) for _ in range(2))
    other = logits(tiny, load_format="dummy", seed=2)
    assert torch.equal(one, again)
    assert not torch.equal(one, other)
    assert one.isfinite().all() and one.std() > 0


@pytest.mark.parametrize("family", ["llama", "qwen3_moe"])
def test_unpacked_weights_live_only_while_their_layer_is_filled(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Loading otherwise takes twice the model's memory: the packed weights and what they were."""
    path = save(make_model(family), tmp_path)
    finished: list[StorageWeakRef] = []
    most = 0
    pack = UnquantizedLinearMethod.process_weights_after_loading

    def watch(self: UnquantizedLinearMethod, weights: Any, *others: Any) -> Any:
        nonlocal most
        finished.append(StorageWeakRef(weights["weight"].data.untyped_storage()))
        most = max(most, sum(not one.expired() for one in finished))
        return pack(self, weights, *others)

    monkeypatch.setattr(UnquantizedLinearMethod, "process_weights_after_loading", watch)
    load(path)
    # One for each thread that loads, and what it has just finished.
    assert len(finished) > 8 and most <= 2 * torch.get_num_threads()
