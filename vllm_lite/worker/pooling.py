"""Vectors of prompts: hidden states of the last or of all tokens, gathered step by step."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from vllm_lite.core.step import ModelRunnerOutput
from vllm_lite.worker.request_states import RequestStates, StepPlan

UNSOUND_VECTOR = "the model gave this request no usable vector: it is not finite"


def pool(hidden: Tensor, states: RequestStates, plan: StepPlan, output: ModelRunnerOutput) -> None:
    """Gather pooling requests' hidden states of a step; enter the vectors of finished prompts.

    `hidden` [T, N] are the step's, request by request. The host waits for the vectors. Each is
    normalized by itself, in float32, so that its bits do not depend on the others.
    """
    is_last = plan.starts + plan.counts == states.tokens.num_prompt_tokens[plan.slots]
    # (row of the plan, how many of its last tokens are wanted)
    wanted: list[tuple[int, int]] = []
    for row, slot in enumerate(plan.slots.tolist()):
        if slot in states.pooling:
            is_per_token = states.pooling[slot][0].is_per_token
            wanted.append((row, int(plan.counts[row] if is_per_token else is_last[row])))
    ends = plan.counts.cumsum()
    tokens = [token for row, count in wanted for token in range(ends[row] - count, ends[row])]
    if not tokens:
        return
    vectors = hidden[torch.tensor(tokens, device=hidden.device)].float().cpu().numpy()
    first = 0
    for row, count in wanted:
        params, gathered = states.pooling[int(plan.slots[row])]
        part, first = vectors[first : first + count], first + count
        if params.use_activation:
            squares = np.square(part, dtype=np.float64).sum(axis=1, keepdims=True)
            part /= np.maximum(np.sqrt(squares), 1e-12)
        gathered.append(part.tobytes())
        if is_last[row]:
            vector = b"".join(gathered)
            if np.isfinite(np.frombuffer(vector, np.float32)).all():
                output.pooled[plan.request_ids[row]] = vector
            else:
                output.errors[plan.request_ids[row]] = UNSOUND_VECTOR
