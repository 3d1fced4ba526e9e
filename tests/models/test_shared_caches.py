"""Layers that read another's cache have none, whatever their checkpoint holds for them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.models.checkpoints import make_model, save
from tests.models.families import CASES
from tests.models.runner import PagedRunner, load
from tests.models.test_families import expected, ids_of
from vllm_lite.errors import CheckpointError


def test_the_cache_of_shared_layers_is_held_once(tmp_path: Path) -> None:
    family, changes = CASES["gemma4"]
    layers = load(save(make_model(family, **changes), tmp_path)).kv_cache_spec().layers
    assert [(layer.sliding_window, layer.head_size) for layer in layers] == [
        (9, 6),
        (9, 6),
        (None, 10),
    ]


def test_weights_that_shared_layers_have_for_nothing_are_passed_over(tmp_path: Path) -> None:
    family, changes = CASES["gemma4"]
    reference = make_model(family, **changes)
    weights = save(reference, tmp_path) / "model.safetensors"
    tensors = load_file(weights)
    for name in ("k_proj", "v_proj", "k_norm"):
        tensors[f"model.layers.5.self_attn.{name}.weight"] = torch.ones(3, 2)
    save_file(tensors, weights)
    got = PagedRunner(load(tmp_path)).step({"a": ids_of(1)})["a"]
    torch.testing.assert_close(got, expected(reference, ids_of(1)), atol=1e-4, rtol=0)


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({"num_kv_shared_layers": 6}, "num_kv_shared_layers is 6 of 6 layers"),
        ({"num_kv_shared_layers": 4}, "none of the first 2 layers"),
        ({"vocab_size_per_layer_input": 130}, "130 in its configuration, fewer than its 131"),
        ({"use_bidirectional_attention": "all"}, "tokens see later ones"),
        ({"per_layer_config": {"2": {"num_attention_heads": 2}}}, "per_layer_config"),
        (
            {"per_layer_config": {"2": {"num_key_value_heads": 3}}},
            "layer 2 has num_key_value_heads 3",
        ),
    ],
)
def test_configurations_that_say_nothing_that_can_run(
    tmp_path: Path, changes: dict[str, Any], cause: str
) -> None:
    family, told = CASES["gemma4"]
    config = save(make_model(family, **told), tmp_path) / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | changes))
    with pytest.raises(CheckpointError, match=cause):
        load(tmp_path)


def test_older_files_name_the_sizes_of_full_layers_by_themselves(tmp_path: Path) -> None:
    family, changes = CASES["gemma4-keys-are-values"]
    reference = make_model(family, **changes)
    config = save(reference, tmp_path) / "config.json"
    told = json.loads(config.read_text())
    del told["per_layer_config"]
    config.write_text(json.dumps(told | {"global_head_dim": 20, "num_global_key_value_heads": 1}))
    got = PagedRunner(load(tmp_path)).step({"a": ids_of(1)})["a"]
    torch.testing.assert_close(got, expected(reference, ids_of(1)), atol=1e-4, rtol=0)
