"""Steps in a row that failed or computed nothing, after which a core gives up."""

from __future__ import annotations

from vllm_lite.errors import EngineDeadError

# Failed steps in a row after which the core gives up.
MAX_FAILED_STEPS = 8
# Steps that compute nothing while requests wait, after which none ever will.
MAX_EMPTY_STEPS = 1000


class Patience:
    """Counts them; either raises EngineDeadError once there are too many."""

    def __init__(self) -> None:
        self._failed = self._empty = 0

    def count_failed(self, error: Exception) -> None:
        self._failed += 1
        if self._failed >= MAX_FAILED_STEPS:
            raise EngineDeadError(
                f"{self._failed} steps in a row failed, the last with "
                f"{type(error).__name__}: {error}"
            ) from error

    def forget_failed(self) -> None:
        self._failed = 0

    def count_empty(self, is_empty: bool) -> None:
        """Count a step that computes nothing while requests wait; any other ends the row."""
        self._empty = self._empty + 1 if is_empty else 0
        if self._empty > MAX_EMPTY_STEPS:
            raise EngineDeadError("requests wait but the scheduler can start none of them")
