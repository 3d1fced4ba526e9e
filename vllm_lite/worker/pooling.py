"""Vectors of prompts: the last token's hidden state, as the steps that compute it go by."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from vllm_lite.core.step import ModelRunnerOutput
from vllm_lite.worker.request_states import RequestStates, StepPlan

UNSOUND_VECTOR = "the model gave this request no usable vector: it is not finite"


def pool_last(
    hidden: Tensor, states: RequestStates, plan: StepPlan, output: ModelRunnerOutput
) -> None:
    """Enter the vectors of the pooling requests whose prompts end in a step.

    `hidden` [T, N] are the step's, request by request. The host waits for the vectors. Each is
    worked out by itself, in float32, so that its bits do not depend on the others.
    """
    is_last = plan.starts + plan.counts == states.tokens.num_prompt_tokens[plan.slots]
    rows = [row for row in is_last.nonzero()[0].tolist() if plan.slots[row] in states.pooling]
    if not rows:
        return
    last_tokens = torch.from_numpy(plan.counts.cumsum()[rows] - 1).to(hidden.device)
    vectors = hidden[last_tokens].float().cpu().numpy()
    for row, vector in zip(rows, vectors, strict=True):
        request_id = plan.request_ids[row]
        if states.pooling[int(plan.slots[row])].use_activation:
            vector /= max(np.sqrt(np.square(vector, dtype=np.float64).sum()), 1e-12)
        if np.isfinite(vector).all():
            output.pooled[request_id] = vector.tobytes()
        else:
            output.errors[request_id] = UNSOUND_VECTOR
