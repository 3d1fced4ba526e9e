"""Of a model that reads pictures too, the text part is run as the text model alone would be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import Qwen2VLTextModel, Qwen3VLTextModel

from tests.models.checkpoints import TINY, make_model, save
from tests.models.families import CASES
from tests.models.runner import PagedRunner, load
from tests.models.test_families import expected, ids_of
from vllm_lite.errors import CheckpointError

MARKS = {
    # Of transformers 5, and of files that are older.
    "new": ("model.language_model.", "lm_head."),
    "old": ("language_model.model.", "language_model.lm_head."),
}


def with_pictures(directory: Path, marks: tuple[str, str]) -> Path:
    """Make the checkpoint there, a text model's, part of one that reads pictures."""
    config, weights = directory / "config.json", directory / "model.safetensors"
    told = json.loads(config.read_text())
    name = told.pop("architectures")[0].replace("ForCausalLM", "ForConditionalGeneration")
    kept = {"dtype": told.pop("dtype"), "tie_word_embeddings": told["tie_word_embeddings"]}
    media = {"vision_config": {"hidden_size": 8}, "image_token_index": 99, "boi_token_id": 98}
    config.write_text(json.dumps({"architectures": [name], "text_config": told} | kept | media))
    tensors = {
        name.replace("model.", marks[0], 1).replace("lm_head.", marks[1], 1): tensor
        for name, tensor in load_file(weights).items()
    }
    tensors["vision_tower.embeddings.weight"] = torch.ones(3, 5)
    tensors["model.vision_tower.layers.0.weight"] = torch.ones(2)
    save_file(tensors, weights)
    return directory


TEXT_MODELS = (
    *("gemma3", "gemma3n-odd", "gemma4-keys-are-values", "gemma4-no-own-inputs"),
    *("llama4", "qwen3_5", "qwen3_5_moe"),
)


@pytest.mark.parametrize("case", TEXT_MODELS)
@pytest.mark.parametrize("age", MARKS)
def test_logits_are_those_of_the_text_model(case: str, age: str, tmp_path: Path) -> None:
    family, changes = CASES[case]
    reference = make_model(family, **changes)
    model = load(with_pictures(save(reference, tmp_path), MARKS[age]))
    got = PagedRunner(model, is_recorded=True).step({"a": ids_of(1)})["a"]
    torch.testing.assert_close(got, expected(reference, ids_of(1)), atol=1e-4, rtol=0)


def test_a_text_model_has_no_place_for_pictures(tmp_path: Path) -> None:
    weights = save(make_model("gemma3", **CASES["gemma3"][1]), tmp_path) / "model.safetensors"
    save_file(load_file(weights) | {"vision_tower.weight": torch.ones(3)}, weights)
    with pytest.raises(CheckpointError, match="vision_tower"):
        load(tmp_path)


def test_a_missing_tensor_of_the_text_part_is_named(tmp_path: Path) -> None:
    path = with_pictures(save(make_model("gemma3", **CASES["gemma3"][1]), tmp_path), MARKS["new"])
    weights = path / "model.safetensors"
    tensors = load_file(weights)
    del tensors["model.language_model.layers.1.mlp.down_proj.weight"]
    save_file(tensors, weights)
    with pytest.raises(CheckpointError, match=r"lacks .*layers\.1\.mlp\.down_proj\.weight"):
        load(path)


@pytest.mark.parametrize(
    ("family", "kind", "scaling"),
    [
        ("qwen2", Qwen2VLTextModel, {"type": "mrope"}),
        ("qwen2", Qwen2VLTextModel, {"rope_type": "default"}),
        ("qwen3", Qwen3VLTextModel, {"rope_type": "default", "mrope_interleaved": True}),
    ],
)
def test_text_is_at_one_position_on_every_axis(
    family: str, kind: Any, scaling: dict[str, Any], tmp_path: Path
) -> None:
    rope = {"rope_theta": 5000.0, "mrope_section": [2, 1, 3]}
    reference = make_model(family, head_dim=12) if family == "qwen3" else make_model(family)
    config = save(reference, tmp_path) / "config.json"
    told = json.loads(config.read_text()) | {"rope_scaling": rope | scaling}
    del told["rope_parameters"]
    config.write_text(json.dumps(told))
    own = {"rms_norm_eps": 1e-6, "rope_parameters": {**rope, "rope_type": "default"}}
    settings = {**TINY, "head_dim": 12, **own}
    text = kind(kind.config_class(**settings)).eval()
    text.load_state_dict(reference.model.state_dict())
    with torch.inference_mode():
        want = reference.lm_head(text(torch.tensor([ids_of(1)])).last_hidden_state[0])
    got = PagedRunner(load(tmp_path)).step({"a": ids_of(1)})["a"]
    torch.testing.assert_close(got, want, atol=1e-4, rtol=0)
