"""Medians of times on the device, each of warm work with cold caches.

Work that is compared takes turns. What is compiled or set up at a first call was so before any
time is taken; CUDA graphs keep the host's share out of it.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Hashable, Mapping
from typing import TypeVar

import torch

from measure.place import Place, say
from measure.report import one_line

# More than any L2. Reading it also gives the host time to queue what is measured; written, its
# lines would go to memory while that is timed.
FLUSHED_BYTES = 512 << 20
# Of a graph of small kernels, each on tensors of its own: one is no longer than its launch.
MOST_CALLS = 20
Work = Callable[[], object]
Name = TypeVar("Name", bound=Hashable)


def can_run(name: str, work: Work) -> bool:
    """Whether torch has a kernel for it; says why not."""
    try:
        work()
    except RuntimeError as error:
        say(f"  {name} is not measured: {one_line(error, 160)}")
        return False
    return True


def graphed(place: Place, work: Work) -> Work:
    """A replay of `work` without the host's part; on the stand-in `work` itself."""
    work()
    if place.is_dry:
        return work
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        work()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()

    def replay() -> Work:
        graph.replay()
        return work  # whose tensors the graph reads

    return replay


def medians(
    place: Place, works: Mapping[Name, Work], *, repeats: int = 30, max_seconds: float = 3.0
) -> dict[Name, float]:
    """Seconds of each work by its name; fewer repeats, but at least 3, where they take long."""
    for work in works.values():
        work()
    place.synchronize()
    flushed = torch.zeros(place.either(FLUSHED_BYTES, 64), dtype=torch.int8, device=place.device)
    words = flushed.view(torch.float32)
    times: dict[Name, list[float]] = {name: [] for name in works}
    began = time.monotonic()
    for turn in range(place.either(repeats, 1)):
        if turn >= 3 and time.monotonic() - began > max_seconds:
            break
        for name, work in works.items():
            words.sum()
            times[name].append(_seconds(place, work))
    return {name: statistics.median(taken) for name, taken in times.items()}


def _seconds(place: Place, work: Work) -> float:
    if place.is_dry:
        began = time.perf_counter()
        work()
        return max(time.perf_counter() - began, 1e-9)
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    work()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / 1e3
