"""The requests and rows of one step, as arrays on the host."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class StepPlan:
    """The requests and rows of one step, as arrays on the host."""

    request_ids: list[str]  # [R]
    slots: Int64s  # [R]
    starts: Int64s  # [R]: position of each request's first token in this step
    counts: Int64s  # [R]
    # After how many of its last tokens each request samples, [R].
    verified: Int64s
    # A row for each sampled token, [S]: the index of its request in this step, and the slot and
    # position where the token goes.
    sampling: Int64s
    sampling_slots: Int64s
    sampled_positions: Int64s
    # Slots of states that the requests [R] and their tokens [T] read and write, -1 for none.
    state_in: Int32s | None = None
    state_out: Int32s | None = None

    @property
    def samples_all(self) -> bool:
        """Whether a token is sampled after every computed one."""
        return len(self.sampling) == int(self.counts.sum())

    @property
    def is_decode(self) -> bool:
        """Whether every request computes one token and samples the next."""
        return len(self.sampling) == len(self.slots) and self.samples_all

    @property
    def has_drafts(self) -> bool:
        """Whether a request samples several tokens."""
        return len(self.sampling) != np.count_nonzero(self.verified)

    @property
    def last_tokens(self) -> Int64s:
        """Index in the step of the token from whose logits each row samples, [S]."""
        offsets = self.counts.cumsum() - self.counts - self.starts
        return offsets[self.sampling] + self.sampled_positions - 1

    @property
    def sampling_ids(self) -> list[str]:
        """The requests of the rows that sample, in their order."""
        return [self.request_ids[row] for row in self.sampling.tolist()]
