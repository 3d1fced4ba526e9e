"""The model architectures that this build can run, by their Hugging Face class names.

The one list that both the configuration (which refuses others early) and the model registry
(which must hold a class for each) are held to.
"""

from __future__ import annotations

SUPPORTED_ARCHITECTURES = (
    "LlamaForCausalLM",
    "MistralForCausalLM",
    "Qwen2ForCausalLM",
    "Qwen3ForCausalLM",
)

# GGUF's general.architecture to the class that runs it.
GGUF_ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}

# Rotary embeddings that the layers know, by transformers' rope_type.
SUPPORTED_ROPE_TYPES = ("default", "linear", "dynamic", "yarn", "llama3")
