"""Architecture names to model classes, imported when first asked for."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from vllm_lite.config.checkpoints.architectures import ARCHITECTURES, DRAFTS
from vllm_lite.config.facts import ModelFacts
from vllm_lite.config.families.architecture import fallback
from vllm_lite.errors import CheckpointError
from vllm_lite.models.decoder import DecoderForCausalLM

if TYPE_CHECKING:
    from vllm_lite.models.transformers_model import TransformersForCausalLM

AnyModel: TypeAlias = "DecoderForCausalLM | TransformersForCausalLM"


def get_model_class(architecture: str, implementation: str = "vllm") -> type[AnyModel]:
    """The class of the Hugging Face architecture; raises CheckpointError for an unknown one."""
    is_own = implementation != "transformers"
    row = {**ARCHITECTURES, **DRAFTS}.get(architecture) if is_own else fallback(architecture)
    if row is None:
        raise CheckpointError(
            f"the architecture {architecture} is not supported; known: {', '.join(ARCHITECTURES)}"
        )
    home = importlib.import_module(f"vllm_lite.models.{row.module}")
    model_class: type[DecoderForCausalLM | TransformersForCausalLM] = getattr(
        home, row.model_class or architecture
    )
    return model_class


def marks_of(facts: ModelFacts) -> Mapping[str, str] | None:
    """Beginnings of the names of a drafting head's tensors; None for a model."""
    if facts.architecture not in DRAFTS:
        return None
    head: Any = get_model_class(facts.architecture)
    marks: Mapping[str, str] = head.marks(facts)
    return marks
