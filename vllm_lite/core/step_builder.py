"""Gathers the decisions of one step and what is left of its budget; decides nothing itself."""

from __future__ import annotations

from dataclasses import dataclass

from vllm_lite.core.request import Request
from vllm_lite.core.step import NewRequestData, SchedulerOutput


@dataclass(slots=True)
class StepBudget:
    """The rest of a step's resources; a request is admitted only where there is some of each.

    Another scarce resource is another field. Blocks are not here: running requests have a claim
    on them, and preempt for it.
    """

    tokens: int
    # Tokens of prompts among them.
    prompts: int
    # Sequences that may join those that run.
    seqs: int
    # Free slots of state-space layers.
    states: int

    @property
    def admits(self) -> bool:
        return self.tokens > 0 and self.prompts > 0 and self.seqs > 0 and self.states > 0


class StepBuilder:
    """A SchedulerOutput in the making."""

    __slots__ = (
        "_new",
        "_new_block_ids",
        "_preempted",
        "budget",
        "num_scheduled_tokens",
        "num_verified",
    )

    def __init__(self, budget: StepBudget) -> None:
        self.budget = budget
        self._new: list[NewRequestData] = []
        self._new_block_ids: dict[str, list[list[int]]] = {}
        self.num_scheduled_tokens: dict[str, int] = {}
        self.num_verified: dict[str, int] = {}
        self._preempted: list[str] = []

    @property
    def has_preempted(self) -> bool:
        """Whether memory ran short in this step."""
        return bool(self._preempted)

    def continue_request(
        self, request: Request, num_tokens: int, num_verified: int, new_blocks: list[list[int]]
    ) -> None:
        """Compute `num_tokens` more of a request that the workers know.

        After so many of the last one is sampled, if the request samples.
        """
        if new_blocks:
            self._new_block_ids[request.request_id] = new_blocks
        self._schedule(request, num_tokens, num_verified)

    def admit_request(
        self, request: Request, num_tokens: int, num_verified: int, block_ids: list[list[int]]
    ) -> None:
        """Compute the first `num_tokens` of a request that is new to the workers."""
        self.budget.seqs -= 1
        self.budget.states -= 1
        self._new.append(
            NewRequestData(
                request_id=request.request_id,
                prompt_token_ids=request.prompt_token_ids,
                task=request.task,
                block_ids=block_ids,
                num_computed_tokens=request.num_computed_tokens,
                output_token_ids=request.output_token_ids,
                eos_token_ids=tuple(request.eos_token_ids),
                scope=f"{request.tenant} {request.cache_salt or ''}",
            )
        )
        self._schedule(request, num_tokens, num_verified)

    def preempt_request(self, request: Request) -> None:
        """Take a running request out, also where this step already gave it tokens."""
        request_id = request.request_id
        self._preempted.append(request_id)
        num_tokens = self.num_scheduled_tokens.pop(request_id, 0)
        if num_tokens:
            self.budget.tokens += num_tokens
            if num_tokens > self.num_verified[request_id]:
                self.budget.prompts += num_tokens
            del self.num_verified[request_id]
            self._new_block_ids.pop(request_id, None)

    def build(self, finished_request_ids: list[str]) -> SchedulerOutput:
        return SchedulerOutput(
            new_requests=self._new,
            new_block_ids=self._new_block_ids,
            num_scheduled_tokens=self.num_scheduled_tokens,
            num_verified=self.num_verified,
            total_num_scheduled_tokens=sum(self.num_scheduled_tokens.values()),
            finished_request_ids=finished_request_ids,
            preempted_request_ids=self._preempted,
        )

    def _schedule(self, request: Request, num_tokens: int, num_verified: int) -> None:
        self.num_scheduled_tokens[request.request_id] = num_tokens
        self.num_verified[request.request_id] = num_verified if request.is_sampling else 0
        self.budget.tokens -= num_tokens
        if num_tokens > num_verified:
            self.budget.prompts -= num_tokens
