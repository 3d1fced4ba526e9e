"""The model architectures that this build can run: one table of plain data.

The module that a row names holds the model's class (models/registry.py).
"""

from __future__ import annotations

from collections.abc import Mapping

from vllm_lite.config.families import classics, experts, llama, qwen_phi_gemma, states
from vllm_lite.config.families.architecture import Architecture, text_part

GROUPS = (llama, qwen_phi_gemma, classics, experts, states)

_TEXT_MODELS = {row.name: row for group in GROUPS for row in group.ROWS}
# Models that read pictures or sounds too, of which the text model is run.
_TEXT_PARTS = ("Gemma3", "Gemma3n", "Gemma4", "Llama4", "Qwen3_5", "Qwen3_5Moe")

ARCHITECTURES: Mapping[str, Architecture] = _TEXT_MODELS | {
    f"{name}ForConditionalGeneration": text_part(
        f"{name}ForConditionalGeneration", _TEXT_MODELS[f"{name}ForCausalLM"]
    )
    for name in _TEXT_PARTS
}

# GGUF's general.architecture to the row of the class that runs it.
GGUF_ARCHITECTURES: Mapping[str, Architecture] = {
    name: row for row in ARCHITECTURES.values() for name in row.gguf
}

# Rotary embeddings that the layers know, by transformers' rope_type.
SUPPORTED_ROPE_TYPES = (
    *("default", "linear", "dynamic", "yarn", "llama3", "longrope", "proportional"),
)
