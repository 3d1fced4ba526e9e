"""Drafts accepted by chance: no block is lost, no guess is published, nobody waits forever.

The laws are those of test_scheduler_laws, here in worlds that all have drafts: any number of them,
each kept as often as is drawn, under small caches, chunks of prompts, preemption and aborts.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule

from tests.builders import request
from tests.fakes import scripted_tokens
from tests.unit.core.test_scheduler_laws import (
    CONFIGS,
    CONTEXT,
    VOCAB,
    WINDOWS,
    SchedulerMachine,
)
from vllm_lite.core.request import Request

DRAFTS = st.fixed_dictionaries(
    {
        "num_speculative_tokens": st.sampled_from([1, 2, 3, 5, 12]),
        "enable_prefix_caching": st.booleans(),
    }
)


class Luck:
    """In place of a ScriptedExecutor's chance: keeps a draft with the probability `accepted`."""

    def __init__(self, seed: int, accepted: float) -> None:
        self._chance, self._accepted = Random(seed), accepted
        self.randint, self.randrange = self._chance.randint, self._chance.randrange

    def random(self) -> float:
        """A number that is below 0.6, which is asked for, as often as drafts are kept."""
        return 0.0 if self._chance.random() < self._accepted else 1.0


class DraftMachine(SchedulerMachine):
    """The same loop, in which every request may have drafts in every step."""

    @initialize(
        options=CONFIGS,
        drafts=DRAFTS,
        chunked=st.sampled_from([True, True, True, False]),
        windows=st.sampled_from(WINDOWS),
        spare=st.integers(0, 4),
        max_in_flight=st.sampled_from([1, 2]),
    )
    def start(self, options: dict[str, Any], drafts: dict[str, Any], **world: Any) -> None:
        super().start(options | drafts, states=None, attends=True, **world)
        self.change_luck(0.6, 0)
        # Of each request, the names of the blocks of its prompt and of what must follow it.
        self.right: dict[str, set[bytes]] = {}

    @rule(accepted=st.sampled_from([0.0, 0.3, 0.6, 0.9, 1.0]), seed=st.integers(0, 1 << 16))
    def change_luck(self, accepted: float, seed: int) -> None:
        self.executor._chance = Luck(seed, accepted)

    def answer(self, leave: Sequence[str] = ()) -> None:
        """Whoever was in a step that came to its end has more tokens or has left."""
        step = self.in_flight[0]
        before = {i: self.progress(i) for i in step.num_scheduled_tokens}
        will_fail = self.executor.raise_next or self.executor.lose_next
        super().answer(leave)
        for request_id, progress in before.items():
            if request_id in self.scheduler.requests and not will_fail:
                assert self.progress(request_id) > progress, "a request stalls"

    def progress(self, request_id: str) -> int:
        """Tokens of it that are computed, and those that are told."""
        r = self.requests[request_id]
        return r.num_computed_tokens + r.num_output_tokens

    @invariant()
    def only_what_is_accepted_is_published(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        for request_id, r in self.requests.items():
            assert r.num_computed_tokens <= len(r.token_ids)
            if request_id not in self.right:
                self.right[request_id] = self.right_names(r)
        names = {name[:32] for name in self.scheduler.kv_manager.pool._by_hash}
        assert names <= set().union(*self.right.values())

    def right_names(self, r: Request) -> set[bytes]:
        """By the manager's own hash, of tokens that no scheduler had a part in."""
        windows = [group.sliding_window for group in self.groups]
        most = (CONTEXT - r.num_prompt_tokens) * r.is_sampling
        follow = scripted_tokens(r.prompt_token_ids, most, vocab_size=VOCAB, windows=windows)
        whole = request(r.prompt_token_ids + follow, cache_salt=r.cache_salt)
        self.scheduler.kv_manager._hasher.extend(whole)
        return set(whole.block_hashes)


TestDrafts = DraftMachine.TestCase
TestDrafts.settings = settings(
    max_examples=50, stateful_step_count=25, deadline=None, derandomize=True
)


@pytest.mark.slow
class TestDraftsAtLength(DraftMachine.TestCase):
    settings = settings(max_examples=100, stateful_step_count=25, deadline=None, derandomize=True)
