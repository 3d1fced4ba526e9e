"""Decoders that embed, or score each token."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from vllm_lite.config.families import llama, qwen_phi_gemma
from vllm_lite.config.families.architecture import Architecture

_BASES = {row.name: row for group in (llama, qwen_phi_gemma) for row in group.ROWS}


def _of(base: str, name: str, **other: Any) -> Architecture:
    """The row of `base` under another name, with other tasks."""
    row = _BASES[base]
    made: Architecture = replace(row, name=name, like=row.like or row.name, gguf=(), **other)
    return made


_VECTORS = {"tasks": ("embed", "token_embed"), "seq_pooling": "MEAN"}
_CLASSES = {"tasks": ("classify", "token_classify"), "seq_pooling": "MEAN"}
_LLAMA = {"model_class": "LlamaForCausalLM", "is_causal": False}
_REWARD = {"module": "rewards", "tasks": ("token_classify",)}

ROWS = (
    _of("Gemma3ForCausalLM", "Gemma3TextModel", model_class="Gemma3ForCausalLM", **_VECTORS),
    _of(
        "Qwen3ForCausalLM",
        "JinaForRanking",
        module="rewards",
        tasks=("token_embed",),
        # A document ends with the first of these tokens, and the query with the second.
        pooling={"answering_token_ids": (151670, 151671), "size": 512},
    ),
    _of("LlamaForCausalLM", "LlamaBidirectionalModel", **_LLAMA, **_VECTORS),
    _of("LlamaForCausalLM", "LlamaBidirectionalForSequenceClassification", **_LLAMA, **_CLASSES),
    _of(
        "InternLM2ForCausalLM",
        "InternLM2ForRewardModel",
        own_defaults={**_BASES["InternLM2ForCausalLM"].own_defaults, "num_labels": 1},
        **_REWARD,
    ),
    _of("Qwen2ForCausalLM", "Qwen2ForRewardModel", own_defaults={"num_labels": 1}, **_REWARD),
    _of("Qwen2ForCausalLM", "Qwen2ForProcessRewardModel", tok_pooling="STEP", **_REWARD),
)
