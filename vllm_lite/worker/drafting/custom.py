"""Drafts of a class of the user's own, by vLLM's interface for such classes.

It is made with the engine's config, and asked for drafts by the newest tokens of each request, how
many tokens there are, and all of them, [R, L].
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from vllm_lite.config.vllm import VllmConfig
from vllm_lite.errors import UsageError
from vllm_lite.worker.drafting.interface import NO_DRAFTS, DraftRows, StepDrafter
from vllm_lite.worker.request_states import RequestStates
from vllm_lite.worker.step_plan import Int32s

_FLAG = "--speculative-config.model"


class CustomDrafts(StepDrafter):
    """Asks an object of the class that --speculative-config.model names."""

    def __init__(self, config: VllmConfig, states: RequestStates) -> None:
        """Raises UsageError where there is no such class."""
        self._states = states
        self._proposer = _make_proposer(config, str(config.speculative.model))

    def propose(self, rows: DraftRows) -> Sequence[Int32s]:
        drafts = [NO_DRAFTS] * len(rows.slots)
        wanting = (rows.most > 0).nonzero()[0]
        if not len(wanting):
            return drafts
        ends, table = rows.ends[wanting], self._states.tokens.token_ids
        token_ids = table[rows.slots[wanting], : int(ends.max())]
        newest = [[int(ids[end - 1])] for ids, end in zip(token_ids, ends, strict=True)]
        found = self._proposer.propose(newest, ends.astype(np.int32), token_ids)
        most = rows.most[wanting].tolist()
        for row, ids, count in zip(wanting.tolist(), found, most, strict=True):
            array = np.array(ids, np.int64)[:count]
            unknown = ((array < 0) | (array >= self._states.vocab_size)).nonzero()[0]
            drafts[row] = array[: unknown[0] if len(unknown) else count].astype(np.int32)
        return drafts


def _make_proposer(config: VllmConfig, path: str) -> Any:
    module, _, name = path.rpartition(".")
    try:
        proposer = getattr(importlib.import_module(module), name)(config)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise UsageError(
            f"{_FLAG} {path} names no class that can be made with the engine's config ({error}); "
            "give package.module.Class"
        ) from None
    if not callable(getattr(proposer, "propose", None)):
        raise UsageError(f"{_FLAG} {path} has no method propose; add it")
    return proposer
