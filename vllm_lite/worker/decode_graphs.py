"""Decode steps captured once for each batch size and replayed: a launch instead of hundreds.

Knows sizes and rows, not requests. A batch takes the smallest captured size that holds it; the
rows that are left over belong to the padding slot, which writes to no cache. Graphs end with the
hidden states: logits of every size would take more memory than all the rest.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from vllm_lite.worker.device_inputs import StepRows

# A step with one token of each row -> hidden states [R, N].
Decode = Callable[[StepRows], Tensor]


class GraphMaker(Protocol):
    """How a device records work."""

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        """Record `work`, which reads and writes fixed memory, and may be run first; a replay."""
        ...


@dataclass(frozen=True, slots=True)
class _Graph:
    """One captured size."""

    rows: StepRows
    replay: Callable[[], None]


class DecodeGraphs:
    """Captures sizes as they are first met, or all at once."""

    def __init__(
        self,
        decode: Decode,
        sizes: Sequence[int],
        padding_slot: int,
        maker: GraphMaker,
        device: torch.device,
    ) -> None:
        """`sizes`: numbers of rows to capture, ascending; larger batches have no graph."""
        self._decode = decode
        self._sizes = list(sizes)
        self._padding_slot = padding_slot
        self._maker = maker
        self._device = device
        self._graphs: dict[int, _Graph] = {}
        # Where every graph leaves its rows: results of their own would each hold memory.
        self._hidden: Tensor | None = None

    @property
    def max_rows(self) -> int:
        """The largest batch that has a graph."""
        return self._sizes[-1] if self._sizes else 0

    @property
    def sizes(self) -> tuple[int, ...]:
        """The sizes to capture, ascending."""
        return tuple(self._sizes)

    def capture(self, size: int) -> None:
        """Capture one of the sizes now. The largest comes first: the others use its memory."""
        self._graph(size)

    def run(self, rows: StepRows) -> Tensor:
        """Hidden states [R, N] of R rows, at most `max_rows`; they live until the next run."""
        num_rows = len(rows.slots)
        graph = self._graph(self._sizes[bisect_left(self._sizes, num_rows)])
        graph.rows.slots[:num_rows] = rows.slots
        graph.rows.slots[num_rows:] = self._padding_slot
        graph.rows.starts[:num_rows] = rows.starts
        graph.rows.starts[num_rows:] = 0
        graph.replay()
        if self._hidden is None:
            raise RuntimeError("a graph ran and left nothing")
        return self._hidden[:num_rows]

    def _graph(self, size: int) -> _Graph:
        graph = self._graphs.get(size)
        if graph is None:
            slots = torch.full((size,), self._padding_slot, device=self._device)
            rows = StepRows(slots, torch.zeros_like(slots), torch.ones_like(slots))
            if self._hidden is None:
                # Run once for the shape; a graph can hold no memory that outlives its pool.
                like = self._decode(rows)
                self._hidden = like.new_empty(self.max_rows, like.shape[1])
            replay = self._maker.capture(lambda: self._compute(rows))
            graph = self._graphs[size] = _Graph(rows, replay)
        return graph

    def _compute(self, rows: StepRows) -> None:
        if self._hidden is not None:
            self._hidden[: len(rows.slots)].copy_(self._decode(rows))
