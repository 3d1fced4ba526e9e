"""Decode steps captured once for each batch size and replayed: a launch instead of hundreds.

Knows sizes and rows, not requests. A batch takes the smallest captured size that holds it; the
rows that are left over belong to the padding slot, which writes to no cache.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from vllm_lite.worker.device_inputs import StepRows

# A step with one token of each row -> logits [R, V].
Decode = Callable[[StepRows], Tensor]


class GraphMaker(Protocol):
    """How a device records work."""

    def capture(self, work: Callable[[], Tensor]) -> tuple[Callable[[], None], Tensor]:
        """Record `work`, which reads and writes fixed memory: a replay, and where its result is."""
        ...


class CudaGraphMaker:
    """CUDA graphs, all in one memory pool: no two run at a time."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()

    def capture(self, work: Callable[[], Tensor]) -> tuple[Callable[[], None], Tensor]:
        """Run `work` once beside the graph, so that what it sets up lazily is set up; record it."""
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            work()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            result = work()
        return graph.replay, result


class RepeatedWork:
    """Stands in for graphs where there are none: does the work anew, into the same place."""

    def capture(self, work: Callable[[], Tensor]) -> tuple[Callable[[], None], Tensor]:
        """Keep `work` and where its first result was."""
        result = work()

        def replay() -> None:
            result.copy_(work())

        return replay, result


@dataclass(frozen=True, slots=True)
class _Graph:
    """One captured size."""

    rows: StepRows
    replay: Callable[[], None]
    logits: Tensor


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

    @property
    def max_rows(self) -> int:
        """The largest batch that has a graph."""
        return self._sizes[-1] if self._sizes else 0

    def capture_all(self) -> None:
        """Capture every size now, the largest first: the others fit into its memory."""
        for size in reversed(self._sizes):
            self._graph(size)

    def run(self, rows: StepRows) -> Tensor:
        """Logits [R, V] of R rows, at most `max_rows`; they live until the next run."""
        num_rows = len(rows.slots)
        graph = self._graph(self._sizes[bisect_left(self._sizes, num_rows)])
        graph.rows.slots[:num_rows] = rows.slots
        graph.rows.slots[num_rows:] = self._padding_slot
        graph.rows.starts[:num_rows] = rows.starts
        graph.rows.starts[num_rows:] = 0
        graph.replay()
        return graph.logits[:num_rows]

    def _graph(self, size: int) -> _Graph:
        graph = self._graphs.get(size)
        if graph is None:
            slots = torch.full((size,), self._padding_slot, device=self._device)
            rows = StepRows(slots, torch.zeros_like(slots), torch.ones_like(slots))
            replay, logits = self._maker.capture(lambda: self._decode(rows))
            graph = self._graphs[size] = _Graph(rows, replay, logits)
        return graph
