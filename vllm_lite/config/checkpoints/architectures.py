"""The model architectures that this build can run: one table of plain data.

The module that a row names holds the model's class (models/registry.py).
"""

from __future__ import annotations

from collections.abc import Mapping

from vllm_lite.config.families import (
    classics,
    drafts,
    encoders,
    experts,
    llama,
    pooled,
    qwen_phi_gemma,
    states,
)
from vllm_lite.config.families.architecture import Architecture, text_part

GROUPS = (llama, qwen_phi_gemma, classics, experts, states, pooled, encoders)

_TEXT_MODELS = {row.name: row for group in GROUPS for row in group.ROWS}
# Models that read pictures or sounds too, of which the text model is run.
_TEXT_PARTS = ("Gemma3", "Gemma3n", "Gemma4", "Llama4", "Qwen3_5", "Qwen3_5Moe")

ARCHITECTURES: Mapping[str, Architecture] = _TEXT_MODELS | {
    f"{name}ForConditionalGeneration": text_part(
        f"{name}ForConditionalGeneration", _TEXT_MODELS[f"{name}ForCausalLM"]
    )
    for name in _TEXT_PARTS
}

DRAFTS: Mapping[str, Architecture] = {row.name: row for row in drafts.ROWS}

# GGUF's general.architecture to the row of the class that runs it.
GGUF_ARCHITECTURES: Mapping[str, Architecture] = {
    name: row for row in ARCHITECTURES.values() for name in row.gguf
}

# Rotary embeddings that the layers know, by transformers' rope_type.
SUPPORTED_ROPE_TYPES = (
    *("default", "linear", "dynamic", "ntk", "yarn", "llama3", "longrope", "proportional"),
)

# Endings of the names of models that are a decoder with another head, or none, and their tasks.
_CONVERTED = {
    "ForSequenceClassification": ("classify", "token_classify"),
    "ForTokenClassification": ("token_classify",),
    "Model": ("embed", "token_embed"),
}


def converted_tasks(name: str) -> tuple[str, ...] | None:
    """The tasks of an architecture that is made of another one; None where its name says none."""
    found = (tasks for ending, tasks in _CONVERTED.items() if name.endswith(ending))
    return next(found, None)


def find_row(name: str) -> Architecture | None:
    """The row of an architecture, or of the decoder that it is made of."""
    ending = next((end for end in _CONVERTED if name.endswith(end)), None)
    if name in ARCHITECTURES or ending is None:
        return ARCHITECTURES.get(name)
    stem = name.removesuffix(ending)
    # Gemma3Text is the text part of Gemma 3.
    stems = (stem, stem.removesuffix("Text"))
    ends = ("ForCausalLM", "LMHeadModel")
    bases = (ARCHITECTURES.get(stem + end) for stem in stems for end in ends)
    return next((row for row in bases if row is not None), None)
