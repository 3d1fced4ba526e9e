"""An estimate of one step's memory beside weights and KV cache, from the shapes.

A trial step of full size would take longer than the rest of start-up.
"""

from __future__ import annotations

from vllm_lite.config.vllm import VllmConfig

# Prompt logits at a time: 8 Mi elements, 32 MiB.
MAX_PROMPT_LOGIT_ELEMENTS = 1 << 23
_ITEM_SIZES = {"float32": 4, "bfloat16": 2, "float16": 2}
# Hidden-sized tensors alive at a time in a layer: stream, normed, projections, attention.
_HIDDEN_TENSORS = 8
# Logits, their copy for log-probabilities, sampling weights, a mask.
_LOGIT_TENSORS = 4


def activation_bytes(config: VllmConfig) -> int:
    """An upper estimate of the largest step's temporaries, in bytes."""
    facts, scheduler = config.facts, config.scheduler
    tokens = scheduler.max_num_batched_tokens
    intermediate = facts.hf_config.get("intermediate_size")
    width = intermediate if isinstance(intermediate, int) else 4 * facts.hidden_size
    heads = (facts.num_heads + 2 * facts.num_kv_heads) * facts.head_size
    per_token = _HIDDEN_TENSORS * facts.hidden_size + 2 * heads + 3 * width
    layers = tokens * (per_token * _ITEM_SIZES[config.model.dtype] + _expert_bytes(config))
    sampled = scheduler.max_num_seqs * facts.vocab_size
    logits = (_LOGIT_TENSORS * sampled + 2 * MAX_PROMPT_LOGIT_ELEMENTS) * 4
    return layers + logits


def _expert_bytes(config: VllmConfig) -> int:
    """Bytes of a token in a mixture of experts: an input and a hidden row for each expert."""
    facts = config.facts
    choices = _largest(facts.hf_config.get("num_experts_per_tok"))
    hidden = 2 * _largest(facts.hf_config.get("moe_intermediate_size"))
    return choices * (4 * facts.hidden_size + hidden * _ITEM_SIZES[config.model.dtype])


def _largest(value: int | list[int] | None) -> int:
    """A size, or the largest of the layers' sizes."""
    return max(value, default=0) if isinstance(value, list) else value or 0
