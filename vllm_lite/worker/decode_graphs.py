"""Decode steps captured once for each batch size and replayed: one launch instead of hundreds.

A batch takes the smallest captured size that holds it; the rest of the rows belong to the padding
slot, which writes to no cache. Graphs end with the hidden states: logits of every size would take
more memory than all the rest.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from vllm_lite.worker.batch import Batch, Forward, StepRows

# A step with one token of each row -> hidden states [R, N].
Decode = Callable[[StepRows], Tensor]


class GraphMaker(Protocol):
    """Records a device's work."""

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        """Record `work`, which uses fixed memory and may be run first; returns a replay."""
        ...


@dataclass(frozen=True, slots=True)
class _Graph:
    """One captured size."""

    rows: StepRows
    idle: StepRows
    replay: Callable[[], None]


class DecodeGraphs:
    """Captures sizes on first use, or all at once."""

    def __init__(
        self,
        decode: Decode,
        otherwise: Forward,
        sizes: Sequence[int],
        idle_rows: Callable[[int], StepRows],
        maker: GraphMaker,
    ) -> None:
        """`sizes`: numbers of rows to capture, ascending; other steps go `otherwise`.

        `idle_rows`: so many rows of a step that no request has.
        """
        self._decode = decode
        self._otherwise = otherwise
        self._sizes = list(sizes)
        self._idle_rows = idle_rows
        self._maker = maker
        self._graphs: dict[int, _Graph] = {}
        # All graphs write their rows here: results of their own would each hold memory.
        self._hidden: Tensor | None = None

    @property
    def max_rows(self) -> int:
        """The largest batch that has a graph."""
        return self._sizes[-1] if self._sizes else 0

    @torch.inference_mode()
    def capture(self, size: int) -> None:
        """Capture one of the sizes. Begin with the largest: the others use its memory."""
        self._graph(size)

    def __call__(self, batch: Batch) -> Tensor:
        """Hidden states [T, N] of a step; they live until the next."""
        rows = batch.rows
        if rows is None or not batch.plan.is_decode or len(rows.slots) > self.max_rows:
            return self._otherwise(batch)
        num_rows = len(rows.slots)
        graph = self._graph(self._sizes[bisect_left(self._sizes, num_rows)])
        columns = (graph.rows.columns, rows.columns, graph.idle.columns)
        for kept, given, idle in zip(*columns, strict=True):
            kept[:num_rows] = given
            kept[num_rows:] = idle[num_rows:]
        graph.replay()
        if self._hidden is None:
            raise RuntimeError("a graph ran and left nothing")
        return self._hidden[:num_rows]

    def _graph(self, size: int) -> _Graph:
        graph = self._graphs.get(size)
        if graph is None:
            rows = self._idle_rows(size)
            if self._hidden is None:
                # Run once for the shape; a graph can hold no memory that outlives its pool.
                like = self._decode(rows)
                self._hidden = like.new_empty(self.max_rows, like.shape[1])
            replay = self._maker.capture(lambda: self._compute(rows))
            graph = self._graphs[size] = _Graph(rows, self._idle_rows(size), replay)
        return graph

    def _compute(self, rows: StepRows) -> None:
        if self._hidden is not None:
            self._hidden[: len(rows.slots)].copy_(self._decode(rows))
