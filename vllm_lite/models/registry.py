"""Architecture names to model classes, imported when first asked for."""

from __future__ import annotations

import importlib

from vllm_lite.errors import CheckpointError
from vllm_lite.models.decoder import DecoderForCausalLM

_MODULES = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
}


def get_model_class(architecture: str) -> type[DecoderForCausalLM]:
    """The class of the Hugging Face architecture; raises CheckpointError if there is none."""
    module = _MODULES.get(architecture)
    if module is None:
        raise CheckpointError(
            f"the architecture {architecture} is not supported; known: {', '.join(_MODULES)}"
        )
    home = importlib.import_module(f"vllm_lite.models.{module}")
    model_class: type[DecoderForCausalLM] = getattr(home, architecture)
    return model_class
