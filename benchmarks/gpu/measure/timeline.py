"""Busy and idle times of the device during steps, from the profiler's record of kernels."""

from __future__ import annotations

import json
import statistics
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from measure.place import Place

ON_DEVICE = {"kernel", "gpu_memcpy", "gpu_memset"}
# The answer to a step goes to the host in one copy; on the stand-in an operation marks it.
ANSWER = "DtoH"


@dataclass(frozen=True, slots=True)
class Span:
    """Something that the device did; microseconds."""

    start: float
    end: float
    name: str


@dataclass(frozen=True, slots=True)
class Timeline:
    """Of several steps."""

    seconds: float  # from the first thing to the last
    busy: float
    # After a step's answer left, until the device has something to do again; all steps.
    between_steps: float
    median_gap: float
    # Between launches, without those; all steps.
    inside_steps: float
    median_inside: float
    # By kernels' names: how many, and microseconds.
    kernels: dict[str, tuple[int, float]]

    @property
    def idle_share(self) -> float:
        return 1.0 - self.busy / self.seconds

    @property
    def gap_share(self) -> float:
        return self.between_steps / self.seconds


def prepare(place: Place) -> None:
    """Comes before graphs are captured: only then the profiler sees what is in them."""
    if not place.is_dry:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]):
            torch.cuda.synchronize()


def record(place: Place, work: Callable[[], None]) -> Timeline:
    """Run `work` under the profiler, from an idle device to an idle device.

    Raises where the profiler shows nothing of the device.
    """
    place.synchronize()
    kind = torch.profiler.ProfilerActivity
    activities = [place.either(kind.CUDA, kind.CPU)]
    with torch.profiler.profile(activities=activities) as profiler:
        work()
        place.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "trace.json")
        profiler.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    kinds, answer = place.either((ON_DEVICE, ANSWER), ({"cpu_op"}, "argmax"))
    spans = spans_of(events, kinds)
    if not spans:
        raise RuntimeError("the profiler recorded nothing that the device did (is CUPTI there?)")
    return summary(spans, answer)


def spans_of(events: list[dict[str, Any]], kinds: set[str]) -> list[Span]:
    """In order of their beginnings."""
    spans = [
        Span(event["ts"], event["ts"] + event["dur"], event["name"])
        for event in events
        if event.get("ph") == "X" and event.get("cat") in kinds
    ]
    return sorted(spans, key=lambda span: span.start)


def summary(spans: list[Span], answer: str) -> Timeline:
    """Busy is the union of the spans: what runs side by side counts once."""
    busy, end, follows_answer = 0.0, spans[0].start, False
    gaps: dict[bool, list[float]] = {True: [], False: []}  # by whether an answer is before them
    for span in spans:
        gap = span.start - end
        if gap > 0:
            gaps[follows_answer].append(gap)
        busy += max(0.0, span.end - max(span.start, end))
        end = max(end, span.end)
        follows_answer = answer in span.name
    between, inside = (
        (sum(of_kind) / 1e6, statistics.median(of_kind or [0.0]) / 1e6)
        for of_kind in (gaps[True], gaps[False])
    )
    seconds = (end - spans[0].start) / 1e6
    return Timeline(seconds, busy / 1e6, *between, *inside, by_name(spans))


def by_name(spans: list[Span]) -> dict[str, tuple[int, float]]:
    """How often each kernel ran, and for how many microseconds; the longest first."""
    found: dict[str, tuple[int, float]] = {}
    for span in spans:
        count, taken = found.get(span.name, (0, 0.0))
        found[span.name] = count + 1, taken + span.end - span.start
    return dict(sorted(found.items(), key=lambda item: -item[1][1]))
