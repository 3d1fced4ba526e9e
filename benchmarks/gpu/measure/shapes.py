"""The models that are measured, as configurations: their shapes, with made-up weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from measure.place import Place

LLAMA_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
_COMMON = {"hidden_act": "silu", "attention_bias": False, "initializer_range": 0.02}
_LLAMA = {
    **_COMMON,
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 131072,
    "bos_token_id": 128000,
    "eos_token_id": 128001,
}
_QWEN3 = {
    **_COMMON,
    "head_dim": 128,
    "vocab_size": 151936,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
    "max_position_embeddings": 40960,
    "bos_token_id": 151643,
    "eos_token_id": 151645,
}
SHAPES: dict[str, dict[str, Any]] = {
    "Llama-3.1-8B": {
        **_LLAMA,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "head_dim": 128,
        "rope_theta": 500000.0,
        "rope_scaling": LLAMA_ROPE,
        "tie_word_embeddings": False,
    },
    "Llama-3.2-1B": {
        **_LLAMA,
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "head_dim": 64,
        "rope_theta": 500000.0,
        "rope_scaling": {**LLAMA_ROPE, "factor": 32.0},
        "tie_word_embeddings": True,
    },
    "Qwen3-0.6B": {
        **_QWEN3,
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "tie_word_embeddings": True,
    },
    "Qwen3-30B-A3B": {
        **_QWEN3,
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "num_hidden_layers": 48,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 768,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "tie_word_embeddings": False,
    },
}
# Small enough that transformers computes their tokens in float32 on the host in seconds. With
# embeddings as wide as these, tied, the best logit is far from the second.
_SMALL = {
    "hidden_size": 512,
    "intermediate_size": 1408,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 8192,
    "max_position_embeddings": 2048,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "initializer_range": 0.05,
    "tie_word_embeddings": True,
}
SHAPES |= {
    "small Llama": {**SHAPES["Llama-3.2-1B"], **_SMALL, "head_dim": 64, "rope_scaling": None},
    "small Qwen3": {**SHAPES["Qwen3-0.6B"], **_SMALL, "head_dim": 128},
}
# What a stand-in runs instead; the architecture stays.
_TINY = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 320,
    "max_position_embeddings": 256,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "rope_scaling": None,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def shape(place: Place, name: str) -> dict[str, Any]:
    """The configuration of one of SHAPES, or its small likeness."""
    whole = SHAPES[name]
    small = {key: value for key, value in _TINY.items() if key in whole}
    return {**whole, "torch_dtype": "bfloat16", **place.either({}, small)}


def model_folder(place: Place, name: str) -> Path:
    """A directory with the configuration alone, for dummy weights."""
    folder = place.folder / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(shape(place, name), indent=1))
    return folder


def write_dense_checkpoint(place: Place, name: str) -> Path:
    """A directory with weights on disk too, of random numbers; made once."""
    from safetensors.torch import save_file

    folder = model_folder(place, name).with_name(f"{name}-weights")
    if (folder / "model.safetensors").exists():
        return folder
    folder.mkdir(exist_ok=True)
    config = shape(place, name)
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    tensors = {key: _made(place, size) for key, size in dense_tensors(config).items()}
    save_file(tensors, folder / "model.safetensors.part", metadata={"format": "pt"})
    (folder / "model.safetensors.part").replace(folder / "model.safetensors")
    return folder


def _made(place: Place, size: tuple[int, ...]) -> torch.Tensor:
    if len(size) == 1:
        return torch.ones(size, dtype=torch.bfloat16)
    made = torch.empty(size, dtype=torch.bfloat16, device=place.device).uniform_(-0.02, 0.02)
    return made.cpu()


def dense_tensors(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Names and shapes of a checkpoint of a Llama or a Qwen3."""
    hidden, middle, size = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    queries, keys = config["num_attention_heads"] * size, config["num_key_value_heads"] * size
    found: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (config["vocab_size"], hidden),
        "model.norm.weight": (hidden,),
    }
    layer: dict[str, tuple[int, ...]] = {
        "input_layernorm": (hidden,),
        "post_attention_layernorm": (hidden,),
        "self_attn.q_proj": (queries, hidden),
        "self_attn.k_proj": (keys, hidden),
        "self_attn.v_proj": (keys, hidden),
        "self_attn.o_proj": (hidden, queries),
        "mlp.gate_proj": (middle, hidden),
        "mlp.up_proj": (middle, hidden),
        "mlp.down_proj": (hidden, middle),
    }
    if config["model_type"] == "qwen3":
        layer |= {"self_attn.q_norm": (size,), "self_attn.k_norm": (size,)}
    for index in range(config["num_hidden_layers"]):
        found |= {f"model.layers.{index}.{name}.weight": dims for name, dims in layer.items()}
    if not config["tie_word_embeddings"]:
        found["lm_head.weight"] = (config["vocab_size"], hidden)
    return found
