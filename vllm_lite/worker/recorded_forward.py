"""A model's forward pass as a recording, where one can be made of it.

Knows the step's metadata and the example that a recording needs; not what is recorded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from vllm_lite.kernels import dispatch
from vllm_lite.kernels.cpu.program import (
    STATE_INPUTS,
    STEP_INPUTS,
    StepInput,
    StepTensors,
    UnrecordableError,
    record_step,
)
from vllm_lite.kernels.metadata import (
    AttentionMetadata,
    StateIndices,
    attention_metadata,
    current_metadata,
)
from vllm_lite.log import init_logger
from vllm_lite.models.interfaces import CausalLM

logger = init_logger(__name__)

_EXAMPLE_TOKENS = 3


@torch.inference_mode()
def recorded_forward(
    model: CausalLM,
    max_tokens: int,
    num_groups: int = 1,
    forward: Callable[[Tensor, Tensor], Any] | None = None,
) -> Callable[[Tensor, Tensor], Any]:
    """`model.forward`, or another `forward` of it, recorded where its operations allow it.

    For steps of up to `max_tokens` tokens.

    A step has block tables for so many groups of layers. The cache must be bound; a recording keeps
    to it, and its result lives until the next step.
    """
    forward = forward or model.forward
    if not dispatch.is_compiled():
        return forward
    names = [(f"slot_mapping_{i}", f"block_table_{i}") for i in range(num_groups)]
    kinds: dict[str, StepInput] = {
        name: kind
        for name, kind in STEP_INPUTS.items()
        if name not in ("slot_mapping", "block_table")
    }
    for slot_mapping, block_table in names:
        kinds[slot_mapping] = STEP_INPUTS["slot_mapping"]
        kinds[block_table] = STEP_INPUTS["block_table"]
    has_states = bool(model.kv_cache_spec().states)
    if has_states:
        kinds |= STATE_INPUTS

    def tensors(input_ids: Tensor, positions: Tensor) -> StepTensors:
        step = current_metadata()
        inputs = {
            "input_ids": input_ids,
            "positions": positions,
            "query_start_loc": step.query_start_loc,
            "seq_lens": step.seq_lens,
        }
        for (slot_mapping, block_table), slots, blocks in zip(
            names, step.slot_mappings, step.block_tables, strict=True
        ):
            inputs[slot_mapping], inputs[block_table] = slots, blocks
        if step.states is not None:
            inputs["state_in"], inputs["state_out"] = step.states
        return inputs

    try:
        with attention_metadata(_example(num_groups, has_states)):
            recorded = record_step(
                lambda step: forward(step["input_ids"], step["positions"]),
                tensors(
                    torch.zeros(_EXAMPLE_TOKENS, dtype=torch.int64), torch.arange(_EXAMPLE_TOKENS)
                ),
                max_tokens,
                kinds,
            )
    except UnrecordableError as error:
        logger.info("Steps run layer by layer: %s", error)
        return forward
    return lambda input_ids, positions: recorded.run(tensors(input_ids, positions))


def _example(num_groups: int, has_states: bool) -> AttentionMetadata:
    """One request of a few tokens; nothing of it is ever computed."""
    return AttentionMetadata(
        query_start_loc=torch.tensor([0, _EXAMPLE_TOKENS], dtype=torch.int32),
        seq_lens=torch.tensor([_EXAMPLE_TOKENS], dtype=torch.int32),
        block_tables=tuple(torch.zeros((1, 1), dtype=torch.int32) for _ in range(num_groups)),
        slot_mappings=tuple(torch.arange(_EXAMPLE_TOKENS) for _ in range(num_groups)),
        num_tokens=_EXAMPLE_TOKENS,
        num_requests=1,
        max_query_len=_EXAMPLE_TOKENS,
        max_seq_len=_EXAMPLE_TOKENS,
        states=StateIndices(*(torch.zeros(n, dtype=torch.int32) for n in (1, _EXAMPLE_TOKENS)))
        if has_states
        else None,
    )
