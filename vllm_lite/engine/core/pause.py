"""The engine's pause: holds sequences before the scheduler.

Invariant: a held sequence is either released, in order, or dropped; it is never in the scheduler
at the same time.
"""

from __future__ import annotations

from collections.abc import Iterable

from vllm_lite.core.step import EngineCoreRequest
from vllm_lite.engine.client import PauseMode


class PauseGate:
    """Open until `close()`; holds the sequences that come while it is closed."""

    def __init__(self) -> None:
        self._mode: PauseMode | None = None
        self._held: dict[str, EngineCoreRequest] = {}

    @property
    def is_closed(self) -> bool:
        """Whether new sequences are held."""
        return self._mode is not None

    @property
    def may_step(self) -> bool:
        """Whether the scheduler's sequences go on: always, except in mode "keep"."""
        return self._mode != "keep"

    @property
    def num_held(self) -> int:
        """Sequences that are held."""
        return len(self._held)

    def close(self, mode: PauseMode) -> None:
        """Hold sequences from now on; a second close changes the mode."""
        self._mode = mode

    def open(self) -> list[EngineCoreRequest]:
        """Hold no more; returns the held sequences in order."""
        self._mode = None
        held, self._held = list(self._held.values()), {}
        return held

    def admit(self, requests: Iterable[EngineCoreRequest]) -> Iterable[EngineCoreRequest]:
        """The `requests` that may go on now; others are held."""
        if not self.is_closed:
            return requests
        self._held.update((request.request_id, request) for request in requests)
        return ()

    def drop(self, request_ids: Iterable[str]) -> None:
        """Forget held sequences; unknown ids are ignored."""
        if self._held:
            for request_id in request_ids:
                self._held.pop(request_id, None)
