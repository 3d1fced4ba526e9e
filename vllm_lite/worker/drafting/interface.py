"""The interface between a runner and a drafter: drafts before each step, a look at it after it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from vllm_lite.worker.step_plan import Int32s, Int64s, StepPlan

NO_DRAFTS = np.empty(0, np.int32)


@dataclass(frozen=True, slots=True)
class DraftRows:
    """The R requests of a step before their drafts; all [R]."""

    slots: Int64s
    # Positions of the first token that the step computes, and behind the last that is known.
    starts: Int64s
    ends: Int64s
    # Drafts that each may have.
    most: Int64s


class StepDrafter:
    """Guesses tokens of the requests of steps; this base guesses none."""

    # Whether it looks at each step, once the host has the tokens that were sampled.
    observes = False
    # Whether it is asked before each step, also for no drafts.
    follows = False

    def propose(self, rows: DraftRows) -> Sequence[Int32s]:
        """Up to `rows.most` tokens of each request that may follow its known ones."""
        return [NO_DRAFTS] * len(rows.slots)

    def observe(self, hidden: Tensor, plan: StepPlan) -> None:
        """Take in a step's hidden states [T, N], request by request, of accepted drafts too."""

    def remember(self, request_id: str, num_unread: int) -> None:
        """Take note of a request that ended, of whose tokens the host lacks the last so many."""
