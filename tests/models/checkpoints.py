"""Random tiny checkpoints, written by transformers as its users would write them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel

from tests.models.families import FAMILIES

TINY: dict[str, Any] = {
    "vocab_size": 131,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "bos_token_id": None,
    "eos_token_id": 2,
}


def make_model(family: str, **changes: Any) -> PreTrainedModel:
    """A random model in float32 whose weights, norms and biases all matter to its logits."""
    told = FAMILIES[family]
    model_class = getattr(transformers, told.architecture)
    common = {name: value for name, value in TINY.items() if name not in told.absent}
    settings = {"attn_implementation": "eager", **common, **told.settings, **changes}
    torch.manual_seed(sum(map(ord, family)))
    model = model_class(model_class.config_class(**settings)).eval()
    told.prepare(model)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            # DBRX calls what holds attention norm_attn_norm.
            parameter.normal_(1.0 if "norm" in name.replace("norm_attn_norm", "") else 0.0, 0.25)
    model.rewrite = told.rewrite
    return model


def save(model: PreTrainedModel, directory: Path, **options: Any) -> Path:
    """Write `model` where a serving engine would find it."""
    model.save_pretrained(directory, **options)
    if rewrite := getattr(model, "rewrite", None):
        weights, config = directory / "model.safetensors", directory / "config.json"
        settings = json.loads(config.read_text())
        save_file(rewrite(settings, load_file(weights)), weights)
        config.write_text(json.dumps(settings))
    return directory
