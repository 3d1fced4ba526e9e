"""Section `mixed_steps`: steps with a prompt beside decoding sequences, as graphs and without."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count as numbers
from itertools import pairwise
from unittest.mock import patch

from measure.engine import EngineCore, Job, add, dummy_engine, made_up, take
from measure.place import Place, say
from measure.report import Row
from vllm_lite.worker.graph_shapes import GraphShape

SECTION, MODEL = "mixed_steps", "Llama-3.1-8B"
# Decoding sequences, and their context at first.
COUNTS, CONTEXT = (1, 64), 256
# Tokens of prompts, and of the largest captured step, which the longest prompt fills.
LENGTHS, LARGEST = (16, 64, 256), 512


@contextmanager
def longer_graphs(are_used: bool) -> Iterator[list[GraphShape]]:
    """Let steps with prompts be graphs or not in the `with` block; collects those that were."""
    replayed: list[GraphShape] = []
    holds = GraphShape.holds

    def holds_if_used(shape: GraphShape, num_tokens: int, num_rows: int, seq_len: int) -> bool:
        does = are_used and holds(shape, num_tokens, num_rows, seq_len)
        replayed.extend([shape] * does)
        return does

    with patch.object(GraphShape, "holds", holds_if_used):
        yield replayed


class Decoding:
    """An engine in which some sequences decode all the time, and prompts come beside them."""

    def __init__(self, place: Place, core: EngineCore, count: int, context: int) -> None:
        self._core, self._count = core, count
        self._vocabulary = core.config.facts.vocab_size
        self._warm, self._steps = place.either((4, 12), (2, 2))
        self._seeds = numbers(1000 * count)
        self._tokens: dict[str, list[int]] = {}
        length = place.either(500, 60)
        prompts = [made_up(self._vocabulary, context, next(self._seeds)) for _ in range(count)]
        add(core, f"beside{count}", [Job(prompt, length) for prompt in prompts])
        while take(core, self._tokens) < count:
            pass

    def step_seconds(self, length: int) -> float:
        """The median of steps that each have a whole prompt of so many tokens, if any."""
        prompts = [
            made_up(self._vocabulary, length, next(self._seeds))
            for _ in range(self._warm + self._steps)
        ]
        stamps = []
        for number, prompt in enumerate(prompts):
            if prompt:
                add(self._core, f"prompt{next(self._seeds)}", [Job(prompt, 1)])
            given = take(self._core, self._tokens)
            stamps.append(time.perf_counter())
            if number >= self._warm and given != self._count + (length > 0):
                raise RuntimeError(f"a step gave {given} tokens beside {self._count} sequences")
        stamps = stamps[self._warm - 1 :]
        return statistics.median(after - before for before, after in pairwise(stamps))

    def end(self) -> None:
        """Stop the sequences."""
        self._core.abort_requests(list(self._tokens))
        while self._core.has_work():
            self._core.step()


def mixed_steps(place: Place) -> None:
    """The time that a prompt adds to a step, and the launches' part of it."""
    counts = place.either(COUNTS, (1, 3))
    largest, lengths = place.either((LARGEST, LENGTHS), (64, (8,)))
    context = place.either(CONTEXT, 16)
    graphs = {"cudagraph_mode": "FULL_AND_PIECEWISE"}
    seqs = max(counts) + 4
    with dummy_engine(place, MODEL, 1024, seqs, compilation_config=graphs) as core:
        say(f"  {core.describe().kernels}")
        for count in counts:
            beside = Decoding(place, core, count, context)
            alone = beside.step_seconds(0)
            for length in (*lengths, largest - count):
                with longer_graphs(True) as replayed:
                    graph = beside.step_seconds(length)
                with longer_graphs(False):
                    eager = beside.step_seconds(length)
                place.tell(
                    Row(
                        SECTION,
                        f"step with a prompt beside {count} decoding, tokens",
                        graph * 1e3,
                        "ms",
                        note="" if replayed else "no graph held it",
                        details={"graphs": sorted({shape.num_tokens for shape in replayed})},
                        column=str(length),
                        beside={"without graphs": eager * 1e3, "without a prompt": alone * 1e3},
                    )
                )
            beside.end()
