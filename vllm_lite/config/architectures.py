"""The model architectures that this build can run: one table of plain data.

A row says what a configuration needs to know of an architecture before any model is built: its
names, what its configuration class assumes of fields that a file leaves out, and which fields it
reads. The module that a row names holds the model's class (models/registry.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from vllm_lite.config.values import JsonView

# Which layers have a config's sliding_window: those that layer_types names, else ...
WindowRule = Literal["none", "every", "switched", "pattern"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """One architecture, by its Hugging Face class name."""

    name: str
    # Of vllm_lite.models, where the class is.
    module: str
    # general.architecture of GGUF files.
    gguf: tuple[str, ...] = ()
    # Its own names of fields to the usual ones.
    aliases: Mapping[str, str] = field(default_factory=dict)
    # What transformers' configuration class assumes of fields that are not there.
    defaults: JsonView = field(default_factory=dict)
    # Fields of its own that the model's class reads, beside READ_BY_ALL.
    reads: frozenset[str] = frozenset()
    # Fields of its own that change nothing which is computed here.
    harmless: frozenset[str] = frozenset()
    windows: WindowRule = "none"
    # What its layers know of earlier tokens by; a state needs no positions.
    mixer: Literal["attention", "state"] = "attention"


def _row(
    name: str, module: str, *, reads: str = "", harmless: str = "", **other: Any
) -> Architecture:
    return Architecture(
        name=name,
        module=module,
        reads=frozenset(reads.split()),
        harmless=frozenset(harmless.split()),
        **other,
    )


_LLAMA = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_MISTRAL = {
    **_LLAMA,
    "intermediate_size": 14336,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
    # In a config.json only null switches it off.
    "sliding_window": 4096,
}
_QWEN = {
    "vocab_size": 151936,
    "hidden_size": 4096,
    "intermediate_size": 22016,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-6,
    "max_window_layers": 28,
}
_QWEN3_MOE = {
    "vocab_size": 151936,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "num_hidden_layers": 24,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-6,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 768,
    "decoder_sparse_step": 1,
    "norm_topk_prob": False,
}
_PHI3 = {
    **_LLAMA,
    "vocab_size": 32064,
    "hidden_size": 3072,
    "intermediate_size": 8192,
    "max_position_embeddings": 4096,
    "original_max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "eos_token_id": 32000,
}

_GPT2 = {
    "vocab_size": 50257,
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "max_position_embeddings": 1024,
    "hidden_act": "gelu_new",
    "layer_norm_epsilon": 1e-5,
    "scale_attn_weights": True,
    "tie_word_embeddings": True,
    "bos_token_id": 50256,
    "eos_token_id": 50256,
}
_GPT_NEOX = {
    "vocab_size": 50432,
    "hidden_size": 6144,
    "intermediate_size": 24576,
    "num_hidden_layers": 44,
    "num_attention_heads": 64,
    "max_position_embeddings": 2048,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-5,
    "use_parallel_residual": True,
    "attention_bias": True,
    "partial_rotary_factor": 0.25,
    "bos_token_id": 0,
    "eos_token_id": 2,
}
_STARCODER2 = {
    "vocab_size": 49152,
    "hidden_size": 3072,
    "intermediate_size": 12288,
    "num_hidden_layers": 30,
    "num_attention_heads": 24,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    "hidden_act": "gelu_pytorch_tanh",
    "norm_epsilon": 1e-5,
    "use_bias": True,
    "tie_word_embeddings": True,
    "bos_token_id": 50256,
    "eos_token_id": 50256,
}
_GEMMA3 = {
    "vocab_size": 262208,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-6,
    "hidden_act": "gelu_pytorch_tanh",
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "rope_theta": 1e6,
    "rope_local_base_freq": 1e4,
    "tie_word_embeddings": True,
    "bos_token_id": 2,
    "eos_token_id": 1,
}

_MAMBA2 = {
    "vocab_size": 32768,
    "hidden_size": 4096,
    "num_hidden_layers": 64,
    "num_attention_heads": 128,
    "head_dim": 64,
    "n_groups": 8,
    "state_size": 128,
    "conv_kernel": 4,
    "expand": 2,
    "use_bias": False,
    "use_conv_bias": True,
    "hidden_act": "silu",
    "layer_norm_epsilon": 1e-5,
    "time_step_limit": (0.0, float("inf")),
    "bos_token_id": 0,
    "eos_token_id": 2,
}

ARCHITECTURES: Mapping[str, Architecture] = {
    row.name: row
    for row in (
        _row(
            *("LlamaForCausalLM", "llama"),
            gguf=("llama",),
            defaults=_LLAMA,
            harmless="sliding_window is_llama_config",
        ),
        _row(
            *("MistralForCausalLM", "mistral"),
            gguf=("mistral",),
            defaults=_MISTRAL,
            windows="every",
        ),
        _row(
            *("Qwen2ForCausalLM", "qwen2"),
            gguf=("qwen2",),
            defaults=_QWEN,
            reads="use_sliding_window max_window_layers",
            windows="switched",
        ),
        _row(
            *("Qwen3ForCausalLM", "qwen3"),
            gguf=("qwen3",),
            defaults={**_QWEN, "head_dim": 128},
            reads="use_sliding_window max_window_layers",
            windows="switched",
        ),
        _row(
            *("Qwen3MoeForCausalLM", "qwen3_moe"),
            gguf=("qwen3moe",),
            aliases={"num_local_experts": "num_experts"},
            defaults=_QWEN3_MOE,
            reads="num_experts num_experts_per_tok moe_intermediate_size decoder_sparse_step "
            "mlp_only_layers norm_topk_prob use_sliding_window",
            harmless="max_window_layers",
            windows="every",
        ),
        _row(
            *("Phi3ForCausalLM", "phi3"),
            gguf=("phi3",),
            defaults=_PHI3,
            windows="every",
        ),
        _row(
            *("GPT2LMHeadModel", "gpt2"),
            aliases={
                "n_embd": "hidden_size",
                "n_head": "num_attention_heads",
                "n_layer": "num_hidden_layers",
                "n_inner": "intermediate_size",
                "activation_function": "hidden_act",
            },
            defaults=_GPT2,
            reads="layer_norm_epsilon scale_attn_weights scale_attn_by_inverse_layer_idx",
            harmless="n_ctx reorder_and_upcast_attn",
        ),
        _row(
            *("GPTNeoXForCausalLM", "gpt_neox"),
            aliases={"rotary_pct": "partial_rotary_factor", "rotary_emb_base": "rope_theta"},
            defaults=_GPT_NEOX,
            reads="layer_norm_eps use_parallel_residual",
        ),
        _row(
            *("Starcoder2ForCausalLM", "starcoder2"),
            defaults=_STARCODER2,
            reads="norm_epsilon use_bias",
            windows="every",
        ),
        _row(
            *("Gemma3ForCausalLM", "gemma3"),
            aliases={"hidden_activation": "hidden_act"},
            defaults=_GEMMA3,
            reads="query_pre_attn_scalar rope_local_base_freq sliding_window_pattern",
            windows="pattern",
        ),
        _row(
            *("Mamba2ForCausalLM", "mamba2"),
            aliases={"num_heads": "num_attention_heads"},
            defaults=_MAMBA2,
            reads="n_groups state_size conv_kernel expand use_bias use_conv_bias "
            "layer_norm_epsilon time_step_limit",
            # What steps of time were drawn from, and how others cut and round what they compute.
            harmless="time_step_min time_step_max time_step_floor time_step_rank chunk_size "
            "residual_in_fp32 rms_norm norm_before_gate",
            mixer="state",
        ),
    )
}

# GGUF's general.architecture to the row of the class that runs it.
GGUF_ARCHITECTURES: Mapping[str, Architecture] = {
    name: row for row in ARCHITECTURES.values() for name in row.gguf
}

# Rotary embeddings that the layers know, by transformers' rope_type.
SUPPORTED_ROPE_TYPES = ("default", "linear", "dynamic", "yarn", "llama3", "longrope")
