"""Configurations as they are published are read, with all that changes nothing in them.

published.json holds those of the Hub's models, without texts; factors of frequencies, and one
model's list of blocks, are shortened or made up.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import transformers

from vllm_lite.config.checkpoints.architectures import ARCHITECTURES
from vllm_lite.config.checkpoints.checkpoint import read_facts
from vllm_lite.config.engine_args import EngineArgs
from vllm_lite.errors import CheckpointError
from vllm_lite.loader.load import cache_spec
from vllm_lite.models.decoder import DecoderForCausalLM
from vllm_lite.models.registry import get_model_class

PUBLISHED: dict[str, dict[str, Any]] = json.loads(
    Path(__file__).with_name("published.json").read_text()
)
FIXED = [(row.name, name) for row in ARCHITECTURES.values() for name in row.fixed]


# Whose published configurations are not here.
BY_CLASS = (
    *("Cohere2Moe", "ExaoneMoe", "Gemma4", "HYV3", "MiniMax", "Mpt", "OlmoHybrid", "Qwen3_5"),
    *("Qwen3_5Moe", "Zamba2"),
)


@pytest.mark.parametrize("model", PUBLISHED)
def test_a_published_configuration_describes_a_model(model: str, tmp_path: Path) -> None:
    check_describes_a_model(PUBLISHED[model], tmp_path)


@pytest.mark.parametrize("name", BY_CLASS)
def test_what_transformers_class_writes_describes_a_model(name: str, tmp_path: Path) -> None:
    architecture = f"{name}ForCausalLM"
    config = getattr(transformers, architecture).config_class(architectures=[architecture])
    check_describes_a_model(json.loads(config.to_json_string(use_diff=False)), tmp_path)


def check_describes_a_model(config: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    facts = read_facts(str(tmp_path))
    assert facts.implementation == "vllm"
    family = get_model_class(facts.architecture)
    assert issubclass(family, DecoderForCausalLM)
    assert len(family.spec(facts).layers) == facts.num_layers
    family.weight_rules(facts)


@pytest.mark.parametrize(("architecture", "name"), FIXED)
def test_a_field_that_has_one_value_may_not_have_another(
    architecture: str, name: str, tmp_path: Path
) -> None:
    told = {"architectures": [architecture], name: "other"}
    (tmp_path / "config.json").write_text(json.dumps(told))
    with pytest.raises(CheckpointError, match=f"{name} is 'other', not "):
        read_facts(str(tmp_path))


def test_deepseek_caches_a_latent_and_a_rotated_key_of_each_token(tmp_path: Path) -> None:
    """Not 16 heads' keys of 192 and values of 128 numbers, which would be nine times as much."""
    model = {**PUBLISHED["deepseek-ai/DeepSeek-V2-Lite"], "num_hidden_layers": 2}
    (tmp_path / "config.json").write_text(json.dumps(model))
    args = EngineArgs(model=str(tmp_path), dtype="bfloat16", device="cpu", skip_tokenizer_init=True)
    spec = cache_spec(args.create_engine_config())
    assert [layer.bytes_per_token for layer in spec.layers] == [(512 + 64) * 2] * 2
