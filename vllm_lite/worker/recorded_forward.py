"""A model's forward pass as a recording, where one can be made of it.

Knows the step's metadata and the example that a recording needs; not what is recorded.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from vllm_lite.attention.metadata import AttentionMetadata, attention_metadata, current_metadata
from vllm_lite.kernels import dispatch
from vllm_lite.log import init_logger
from vllm_lite.models.interfaces import CausalLM

logger = init_logger(__name__)

# Input ids and positions, both [T], to hidden states [T, N]; inside `attention_metadata(...)`.
Forward = Callable[[Tensor, Tensor], Tensor]
_EXAMPLE_TOKENS = 3


@torch.inference_mode()
def recorded_forward(model: CausalLM, max_tokens: int) -> Forward:
    """`model.forward` for steps of up to `max_tokens`, recorded where its operations allow it.

    The cache must be bound; a recording keeps to it, and its result lives until the next step.
    """
    if not dispatch.is_compiled():
        return model.forward
    from vllm_lite.kernels.cpu_program import StepTensors, UnrecordableError, record_step

    def tensors(input_ids: Tensor, positions: Tensor) -> StepTensors:
        step = current_metadata()
        return {
            "input_ids": input_ids,
            "positions": positions,
            "slot_mapping": step.slot_mapping,
            "block_table": step.block_table,
            "query_start_loc": step.query_start_loc,
            "seq_lens": step.seq_lens,
        }

    try:
        with attention_metadata(_example()):
            recorded = record_step(
                lambda step: model.forward(step["input_ids"], step["positions"]),
                tensors(
                    torch.zeros(_EXAMPLE_TOKENS, dtype=torch.int64), torch.arange(_EXAMPLE_TOKENS)
                ),
                max_tokens,
            )
    except UnrecordableError as error:
        logger.info("Steps run layer by layer: %s", error)
        return model.forward
    return lambda input_ids, positions: recorded.run(tensors(input_ids, positions))


def _example() -> AttentionMetadata:
    """One request of a few tokens; nothing of it is ever computed."""
    return AttentionMetadata(
        query_start_loc=torch.tensor([0, _EXAMPLE_TOKENS], dtype=torch.int32),
        seq_lens=torch.tensor([_EXAMPLE_TOKENS], dtype=torch.int32),
        block_table=torch.zeros((1, 1), dtype=torch.int32),
        slot_mapping=torch.arange(_EXAMPLE_TOKENS),
        num_tokens=_EXAMPLE_TOKENS,
        num_requests=1,
        max_query_len=_EXAMPLE_TOKENS,
        max_seq_len=_EXAMPLE_TOKENS,
    )
