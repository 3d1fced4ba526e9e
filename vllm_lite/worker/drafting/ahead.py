"""Drafts that come with a step's answer, for requests whose next step is planned by what they are.

A grammar's masks are made with the step, and cut its drafts: so they must be known before it.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from vllm_lite.worker.drafting.interface import DraftRows, StepDrafter
from vllm_lite.worker.request_states import RequestStates
from vllm_lite.worker.step_plan import StepPlan


def draft_ahead(
    drafter: StepDrafter, states: RequestStates, plan: StepPlan, wanted: Mapping[str, int]
) -> dict[str, list[int]]:
    """Up to `wanted` drafts of requests of the step `plan`, whose sampled tokens are known.

    Only as many as fit into the blocks that they have: others may be computed for nothing.
    """
    rows = dict(zip(plan.request_ids, plan.slots.tolist(), strict=True))
    slots = np.array([rows[request_id] for request_id in wanted], np.int64)
    starts = states.num_computed_tokens[slots]
    room = states.tables.capacity(slots) - starts
    most = np.minimum(np.fromiter(wanted.values(), np.int64, len(slots)), room)
    fits = most > 0
    if not fits.any():
        return {}
    found = drafter.propose(DraftRows(slots[fits], starts[fits], starts[fits] + 1, most[fits]))
    ids = (request_id for request_id, has_room in zip(wanted, fits, strict=True) if has_room)
    return {name: drafts.tolist() for name, drafts in zip(ids, found, strict=True) if len(drafts)}
