"""Random tiny checkpoints, written by transformers as its users would write them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    GPT2LMHeadModel,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    Mamba2Config,
    Mamba2ForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
    Starcoder2Config,
    Starcoder2ForCausalLM,
)

FAMILIES: dict[str, tuple[Any, Any]] = {
    "gemma3": (Gemma3TextConfig, Gemma3ForCausalLM),
    "gpt2": (GPT2Config, GPT2LMHeadModel),
    "gpt_neox": (GPTNeoXConfig, GPTNeoXForCausalLM),
    "llama": (LlamaConfig, LlamaForCausalLM),
    "mamba2": (Mamba2Config, Mamba2ForCausalLM),
    "mistral": (MistralConfig, MistralForCausalLM),
    "phi3": (Phi3Config, Phi3ForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
    "qwen3_moe": (Qwen3MoeConfig, Qwen3MoeForCausalLM),
    "starcoder2": (Starcoder2Config, Starcoder2ForCausalLM),
}

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

OF_FAMILY: dict[str, dict[str, Any]] = {
    "gemma3": {"num_hidden_layers": 3, "head_dim": 20, "sliding_window": 9},
    "gpt_neox": {"num_attention_heads": 3, "num_key_value_heads": 3},
    "mamba2": {
        "num_heads": 6,
        "head_dim": 16,
        "n_groups": 2,
        "state_size": 12,
    },
    "ministral": {"head_dim": 12},
    "phi3": {"pad_token_id": None},
    "qwen3": {"head_dim": 16},
    "qwen3_moe": {
        "head_dim": 16,
        "num_experts": 6,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 40,
        "norm_topk_prob": True,
    },
}


# What its configuration has no field for.
ABSENT = {
    "mamba2": {
        *("num_attention_heads", "num_key_value_heads"),
        *("intermediate_size", "max_position_embeddings"),
    }
}


def make_model(family: str, **changes: Any) -> PreTrainedModel:
    """A random model in float32 whose weights, norms and biases all matter to its logits."""
    config_class, model_class = FAMILIES[family]
    common = {name: value for name, value in TINY.items() if name not in ABSENT.get(family, ())}
    settings = {**common, **OF_FAMILY.get(family, {}), **changes}
    torch.manual_seed(sum(map(ord, family)))
    model = model_class(config_class(**settings, attn_implementation="eager")).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(1.0 if "norm" in name else 0.0, 0.25)
    return model


def save(model: PreTrainedModel, directory: Path, **options: Any) -> Path:
    """Write `model` where a serving engine would find it."""
    model.save_pretrained(directory, **options)
    return directory
