"""Steps captured once for each shape and replayed: one launch instead of hundreds.

A step takes the smallest captured shape that holds it. Rows that a decode step lacks belong to the
padding slot, which writes to no cache; in longer steps such rows have no tokens, and tokens behind
the last row's are of no request. Graphs of few rows go on to each row's next token; the rest end
with the hidden states.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from vllm_lite.worker.batch import Batch, Computed, Forward, StepRows
from vllm_lite.worker.graph_sampler import GraphSampler, Sampled
from vllm_lite.worker.graph_shapes import GraphShape
from vllm_lite.worker.step_plan import StepPlan

# The rows of a step and its shape -> hidden states [T, N].
Compute = Callable[[StepRows, GraphShape], Tensor]


class GraphMaker(Protocol):
    """Records a device's work."""

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        """Record `work`, which uses fixed memory and may be run first; returns a replay."""


@dataclass(frozen=True, slots=True)
class _Graph:
    """One captured shape."""

    rows: StepRows
    idle: StepRows
    replay: Callable[[], None]
    # What it samples, in its own memory; empty where it does not.
    sampled: list[Sampled]


class DecodeGraphs:
    """Captures shapes on first use, or all at once."""

    def __init__(
        self,
        compute: Compute,
        sampler: GraphSampler | None,
        otherwise: Forward,
        shapes: Sequence[GraphShape],
        idle_rows: Callable[[GraphShape], StepRows],
        maker: GraphMaker,
    ) -> None:
        """`shapes`: the steps to capture; others go `otherwise`.

        `sampler`: None where nothing samples. `idle_rows`: the rows of a step that no request has.
        """
        self._compute = compute
        self._sampler = sampler
        self._otherwise = otherwise
        self.shapes = sorted(shapes)
        self._decode = [shape for shape in self.shapes if shape.is_decode]
        self._decode_sizes = [shape.num_rows for shape in self._decode]
        self._longer = [shape for shape in self.shapes if not shape.is_decode]
        self._idle_rows = idle_rows
        self._maker = maker
        self._graphs: dict[GraphShape, _Graph] = {}
        # All graphs write their rows here: results of their own would each hold memory.
        self._hidden: Tensor | None = None

    @torch.inference_mode()
    def capture(self, shape: GraphShape) -> None:
        """Capture one of the shapes. Begin with the largest: the others use its memory."""
        self._graph(shape)

    def __call__(self, batch: Batch) -> Computed:
        """Compute a step."""
        rows, shape = batch.rows, self._shape_of(batch.plan)
        if rows is None or shape is None:
            return self._otherwise(batch)
        graph = self._graph(shape)
        columns = (_varying(each, shape) for each in (graph.rows, rows, graph.idle))
        for kept, given, idle in zip(*columns, strict=True):
            kept[: len(given)] = given
            kept[len(given) :] = idle[len(given) :]
        if self._sampler is not None and graph.sampled:
            self._sampler.prepare(batch.sampling)
        graph.replay()
        if self._hidden is None:
            raise RuntimeError("a graph ran and left nothing")
        num_tokens = int(batch.plan.counts.sum())
        hidden = self._hidden[:num_tokens]
        if not graph.sampled:
            return Computed(hidden)
        logits, tokens, largest = (made[:num_tokens] for made in graph.sampled[0])
        return Computed(hidden, logits, (tokens, largest))

    def _shape_of(self, plan: StepPlan) -> GraphShape | None:
        num_rows = len(plan.slots)
        if plan.is_decode:
            place = bisect_left(self._decode_sizes, num_rows)
            return self._decode[place] if place < len(self._decode) else None
        num_tokens = int(plan.counts.sum())
        if num_tokens == num_rows:
            return None
        seq_len = int((plan.starts + plan.counts).max())
        fitting = (s for s in self._longer if s.holds(num_tokens, num_rows, seq_len))
        return next(fitting, None)

    def _graph(self, shape: GraphShape) -> _Graph:
        graph = self._graphs.get(shape)
        if graph is None:
            rows = self._idle_rows(shape)
            if self._hidden is None:
                # Run once for the shape; a graph can hold no memory that outlives its pool.
                like = self._compute(rows, shape)
                self._hidden = like.new_empty(self.shapes[-1].num_tokens, like.shape[1])
            sampled: list[Sampled] = []
            replay = self._maker.capture(lambda: self._run(rows, shape, sampled))
            graph = self._graphs[shape] = _Graph(rows, self._idle_rows(shape), replay, sampled)
        return graph

    def _run(self, rows: StepRows, shape: GraphShape, sampled: list[Sampled]) -> None:
        if self._hidden is None:
            return
        hidden = self._compute(rows, shape)
        self._hidden[: shape.num_tokens].copy_(hidden)
        sampler = self._sampler
        if sampler is not None and shape.is_decode and shape.num_rows <= sampler.most_rows:
            sampled[:] = [sampler.sample(rows, hidden)]


def _varying(rows: StepRows, shape: GraphShape) -> tuple[Tensor, ...]:
    """The columns that differ between steps of a shape: a decode step's counts are 1."""
    return rows.columns if shape.is_decode else (rows.counts, *rows.columns)
