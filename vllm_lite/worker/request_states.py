"""What a worker keeps of each request between steps: a slot with its tokens and its blocks.

Knows no tensors of a step. A slot that is given out anew is reset whole; a request that was
preempted is forgotten and comes back as new.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from vllm_lite.core.step import CachedRequestData, NewRequestData
from vllm_lite.sample.states import TokenTable
from vllm_lite.worker.block_table import BlockTable


class RequestStates:
    """Tokens, progress and blocks by slot; slots by request id."""

    def __init__(self, num_slots: int, max_model_len: int, tables: Sequence[BlockTable]) -> None:
        """`tables`: one for each group of layers."""
        # Rows are touched only as far as requests reach. A prompt may fill the context, and
        # the token after it is sampled still.
        self.tokens = TokenTable(
            token_ids=np.zeros((num_slots, max_model_len + 1), np.int32),
            num_prompt_tokens=np.zeros(num_slots, np.int64),
            num_tokens=np.zeros(num_slots, np.int64),
        )
        self.num_computed_tokens = np.zeros(num_slots, np.int64)
        self.tables = tables
        # slot -> candidates a prompt position, for the requests that want prompt logprobs.
        self.prompt_logprobs: dict[int, int] = {}
        self._slots: dict[str, int] = {}
        self._free = list(range(num_slots - 1, -1, -1))

    def __len__(self) -> int:
        return len(self._slots)

    def slot(self, request_id: str) -> int:
        """The slot of a request that is known; KeyError otherwise."""
        return self._slots[request_id]

    def slots(self, request_ids: list[str]) -> list[int]:
        """Slots of requests that are known."""
        return [self._slots[request_id] for request_id in request_ids]

    def add(self, request: NewRequestData) -> int:
        """Take a slot for `request` and fill it; the slot."""
        if request.request_id in self._slots:
            raise ValueError(f"request {request.request_id} is already here")
        slot = self._free.pop()
        self._slots[request.request_id] = slot
        prompt, output = request.prompt_token_ids, request.output_token_ids
        row = self.tokens.token_ids[slot]
        row[: len(prompt)] = prompt
        row[len(prompt) : len(prompt) + len(output)] = output
        self.tokens.num_prompt_tokens[slot] = len(prompt)
        self.tokens.num_tokens[slot] = len(prompt) + len(output)
        self.num_computed_tokens[slot] = request.num_computed_tokens
        for table, block_ids in zip(self.tables, request.block_ids, strict=True):
            table.set_row(slot, block_ids)
        self.prompt_logprobs.pop(slot, None)
        wanted = request.sampling_params.prompt_logprobs
        # One that has outputs had its whole prompt reported before it was preempted.
        if wanted is not None and not output:
            self.prompt_logprobs[slot] = wanted
        return slot

    def update(self, requests: list[CachedRequestData]) -> None:
        """Bring running requests to where the scheduler says they are."""
        slots = [self._slots[request.request_id] for request in requests]
        self.num_computed_tokens[slots] = [request.num_computed_tokens for request in requests]
        for slot, request in zip(slots, requests, strict=True):
            if request.new_block_ids:
                for table, block_ids in zip(self.tables, request.new_block_ids, strict=True):
                    table.append_row(slot, block_ids)

    def remove(self, request_id: str) -> int | None:
        """Give a request's slot back; None for a request that is not here."""
        slot = self._slots.pop(request_id, None)
        if slot is not None:
            self.prompt_logprobs.pop(slot, None)
            self._free.append(slot)
        return slot
