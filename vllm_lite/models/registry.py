"""Architecture names to model classes, imported when first asked for."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, TypeAlias

from vllm_lite.config.architectures import ARCHITECTURES
from vllm_lite.config.families.architecture import fallback
from vllm_lite.errors import CheckpointError
from vllm_lite.models.decoder import DecoderForCausalLM

if TYPE_CHECKING:
    from vllm_lite.models.transformers_model import TransformersForCausalLM

AnyModel: TypeAlias = "DecoderForCausalLM | TransformersForCausalLM"


def get_model_class(architecture: str, implementation: str = "vllm") -> type[AnyModel]:
    """The class of the Hugging Face architecture; raises CheckpointError for an unknown one."""
    is_own = implementation != "transformers"
    row = ARCHITECTURES.get(architecture) if is_own else fallback(architecture)
    if row is None:
        raise CheckpointError(
            f"the architecture {architecture} is not supported; known: {', '.join(ARCHITECTURES)}"
        )
    home = importlib.import_module(f"vllm_lite.models.{row.module}")
    model_class: type[DecoderForCausalLM | TransformersForCausalLM] = getattr(
        home, row.model_class or architecture
    )
    return model_class
