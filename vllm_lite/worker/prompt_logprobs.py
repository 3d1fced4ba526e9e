"""Log-probabilities of prompts, step by step.

Logits are computed some rows at a time: a whole prompt's would be larger than the model.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from vllm_lite.core.step import TokenLogprobs
from vllm_lite.kernels.transfer import Arriving
from vllm_lite.models.interfaces import CausalLM
from vllm_lite.sample.logprobs import gather_logprobs
from vllm_lite.worker.profile import MAX_PROMPT_LOGIT_ELEMENTS
from vllm_lite.worker.request_states import RequestStates
from vllm_lite.worker.step_plan import StepPlan


class PromptLogprobs:
    """Scores the prompt tokens that follow a step's positions."""

    def __init__(self, model: CausalLM, vocab_size: int) -> None:
        self._model = model
        self._vocab_size = vocab_size

    def collect(
        self, hidden: Tensor, states: RequestStates, plan: StepPlan
    ) -> dict[str, list[TokenLogprobs]]:
        """The prompt logprobs of a step's requests that asked, by request id.

        `hidden` [T, N] are the step's, request by request. A request whose prompt is done is asked
        no more.
        """
        starts, counts = plan.starts, plan.counts
        found: dict[str, list[TokenLogprobs]] = {}
        tokens, wanting = states.tokens, states.prompt_logprobs
        first_token = np.concatenate([[0], np.cumsum(counts)]).tolist()
        for row, slot in enumerate(plan.slots.tolist()):
            wanted = wanting.get(slot)
            if wanted is None:
                continue
            start, length = int(starts[row]), int(tokens.num_prompt_tokens[slot])
            # The prompt's last position predicts the first output, not a prompt token.
            count = min(int(counts[row]), length - 1 - start)
            if count > 0:
                targets = tokens.token_ids[slot, start + 1 : start + 1 + count]
                rows = hidden[first_token[row] : first_token[row] + count]
                ids = torch.from_numpy(targets.astype(np.int64)).to(hidden.device)
                found[plan.request_ids[row]] = self._score(rows, ids, wanted)
            if start + int(counts[row]) >= length:
                del wanting[slot]
        return found

    def _score(self, hidden: Tensor, targets: Tensor, wanted: int) -> list[TokenLogprobs]:
        """Log-probabilities of `targets` [P] after the positions `hidden` [P, N]."""
        size = max(1, MAX_PROMPT_LOGIT_ELEMENTS // self._vocab_size)
        found: list[TokenLogprobs] = []
        for start in range(0, len(targets), size):
            logits = self._model.compute_logits(hidden[start : start + size])
            part = targets[start : start + size]
            rows, index = range(len(part)), torch.arange(len(part), device=part.device)
            unread = gather_logprobs(logits, rows, index, part, [wanted] * len(part))
            found += unread.read(Arriving(*unread.tensors).wait())
        return found
