"""Llama and its kin."""

from __future__ import annotations

from vllm_lite.config.families.architecture import row

ROWS = (
    row(
        "LlamaForCausalLM",
        "llama",
        gguf=("llama",),
        harmless="sliding_window is_llama_config",
    ),
    row(
        "MistralForCausalLM",
        "mistral",
        gguf=("mistral",),
        windows="every",
    ),
)
