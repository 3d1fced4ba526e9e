"""Pictures of a load, as PNG files.

The one place that knows matplotlib, which is optional and imported when a Plotter is made.
Colours and sizes are the same in all pictures.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from vllm_lite.bench.metrics import num_output
from vllm_lite.bench.options.load import METRICS
from vllm_lite.bench.recorder import RequestResult
from vllm_lite.errors import UsageError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

# Told apart also by those who see no red or green (Okabe and Ito).
BLUE, ORANGE, GREEN, VERMILION, PURPLE, SKY = (
    *("#0072B2", "#E69F00", "#009E73"),
    *("#D55E00", "#CC79A7", "#56B4E9"),
)
COLOURS = (BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY)
WAITING = "#C8CDD3"
_DPI = 150
_MARKED = (50, 90, 99)


class Plotter:
    """Draws and writes; raises UsageError where matplotlib is missing or a file not writable."""

    def __init__(self) -> None:
        try:
            import matplotlib
        except ImportError:
            raise UsageError(
                "plots need matplotlib; install it with: pip install 'vllm-lite[bench]'"
            ) from None
        matplotlib.use("agg")  # files only: there may be no display

    def distributions(self, values: Mapping[str, Sequence[float]], path: Path) -> Path:
        """One panel for each metric (in seconds): the share of values at most so long."""
        shown = {name: listed for name, listed in values.items() if len(listed)}
        columns = 1 if len(shown) == 1 else 2
        rows = -(-len(shown) // columns)
        figure = self.figure(5.6 * columns, 3.9 * rows)
        for place, (name, listed) in enumerate(shown.items(), 1):
            axes = figure.add_subplot(rows, columns, place)
            _draw_distribution(axes, np.sort(np.asarray(listed)) * 1000, COLOURS[(place - 1) % 6])
            title = METRICS[name][2] if name in METRICS else name
            axes.set_title(title, loc="left", fontsize=11, fontweight="bold")
        return self.save(figure, path)

    def timeline(
        self, results: Sequence[RequestResult], thresholds: Sequence[float], path: Path
    ) -> Path:
        """A line for each request in the order of their starts, above how many ran.

        It is grey until the first token; then each gap has a colour of its length.
        """
        listed = sorted(results, key=lambda result: result.start_time)
        origin = listed[0].start_time
        figure = self.figure(11.0, min(3.6 + 0.045 * len(listed), 9.5))
        upper, lower = figure.subplots(
            2, 1, sharex=True, gridspec_kw={"height_ratios": [4, 1], "hspace": 0.08}
        )
        _draw_requests(upper, listed, origin, [limit / 1000 for limit in thresholds])
        _draw_running(lower, listed, origin)
        upper.set_title("Requests over time", loc="left", fontsize=11, fontweight="bold")
        lower.set_xlabel("seconds since the first request")
        return self.save(figure, path)

    def lengths(self, results: Sequence[RequestResult], path: Path) -> Path:
        """How many prompts and outputs have which length."""
        figure = self.figure(9.6, 3.8)
        prompts = [result.prompt_tokens for result in results]
        outputs = [num_output(result) for result in results]
        for place, (title, listed, colour) in enumerate(
            (("Prompts", prompts, BLUE), ("Outputs", outputs, VERMILION)), 1
        ):
            axes = figure.add_subplot(1, 2, place)
            low, high = min(listed), max(listed)
            num_bars = min(high - low + 1, max(8, int(2 * len(listed) ** 0.5)), 40)
            edges = np.linspace(low - 0.5, high + 0.5, num_bars + 1)
            axes.hist(listed, bins=list(edges), color=colour, edgecolor="white", linewidth=0.4)
            axes.set_title(title, loc="left", fontsize=11, fontweight="bold")
            about = f"mean {np.mean(listed):.0f}, median {np.median(listed):.0f}, {low} to {high}"
            axes.set_title(about, loc="right", fontsize=9, color="#555555")
            axes.set_xlabel("tokens")
            axes.set_ylabel("requests" if place == 1 else "")
            whole_numbers(axes.xaxis, axes.yaxis)
            tidy(axes)
        return self.save(figure, path)

    def figure(self, width: float, height: float) -> Figure:
        from matplotlib.figure import Figure

        return Figure(figsize=(width, height), dpi=_DPI, layout="constrained")

    def save(self, figure: Figure, path: Path) -> Path:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            figure.savefig(path, format="png")
        except OSError as error:
            raise UsageError(f"cannot write {path}: {error.strerror}") from None
        return path


def whole_numbers(*axes: Axis) -> None:
    """Put ticks at whole numbers alone, as counts are."""
    from matplotlib.ticker import MaxNLocator

    for axis in axes:
        axis.set_major_locator(MaxNLocator("auto", integer=True, steps=[1, 2, 5, 10]))


def tidy(axes: Axes) -> None:
    """Leave out the lines of a frame that say nothing."""
    axes.grid(True, color="#E6E6E6", linewidth=0.7)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _draw_distribution(axes: Axes, values: np.ndarray, colour: str) -> None:
    """`values` are sorted milliseconds."""
    share = np.arange(1, len(values) + 1) / len(values) * 100
    axes.step([values[0], *values], [0.0, *share], where="post", color=colour, linewidth=1.8)
    for percentile in _MARKED:
        value = _percentile(values, percentile)
        axes.plot([value, value], [0, percentile], color=colour, linewidth=0.8, linestyle=":")
        axes.plot(value, percentile, "o", color=colour, markersize=4)
    marks = [f"P{p} {_percentile(values, p):.4g}" for p in _MARKED]
    axes.set_title("   ".join(marks) + " ms", loc="right", fontsize=9, color="#555555")
    # A tail a hundred times as long as the rest would press the rest into one line.
    if values[0] > 0 and values[-1] > 30 * np.median(values):
        axes.set_xscale("log")
    axes.set_ylim(0, 103)
    axes.set_xlabel("milliseconds")
    axes.set_ylabel("% of values")
    tidy(axes)


def _percentile(values: np.ndarray, percentile: float) -> float:
    """One of the values, so that its mark lies on the steps of their curve."""
    return float(np.percentile(values, percentile, method="inverted_cdf"))


def _draw_requests(
    axes: Axes, listed: Sequence[RequestResult], origin: float, limits: Sequence[float]
) -> None:
    from matplotlib.collections import LineCollection
    from matplotlib.lines import Line2D

    low, high = limits
    names = (
        "before the first token",
        f"gap up to {low * 1000:g} ms",
        f"up to {high * 1000:g} ms",
        f"over {high * 1000:g} ms",
    )
    colours = (WAITING, BLUE, ORANGE, VERMILION)
    # Row, begin and end of each line, by colour.
    lines: tuple[list[tuple[int, float, float]], ...] = ([], [], [], [])
    for row, result in enumerate(listed):
        begin = result.start_time - origin
        at = begin + result.ttft
        lines[0].append((row, begin, at))
        for gap in result.itls:
            drawn = lines[1 + (gap > low) + (gap > high)]
            # Gaps of a colour that touch are one line: fewer to draw, and no seams.
            if drawn and drawn[-1][0] == row and drawn[-1][2] == at:
                drawn[-1] = (row, drawn[-1][1], at + gap)
            else:
                drawn.append((row, at, at + gap))
            at += gap
    width = max(min(260 / len(listed), 5.0), 0.6)
    for colour, drawn in zip(colours, lines, strict=True):
        segments = [[(begin, row), (end, row)] for row, begin, end in drawn]
        axes.add_collection(LineCollection(segments, colors=colour, linewidths=width))
    axes.autoscale()
    axes.set_ylim(len(listed) - 0.4, -0.6)
    axes.set_ylabel("request")
    whole_numbers(axes.yaxis)
    handles = [Line2D([], [], color=colour, linewidth=4) for colour in colours]
    axes.legend(
        handles,
        names,
        loc="lower right",
        bbox_to_anchor=(1, 1),
        ncols=4,
        frameon=False,
        fontsize=8.5,
        borderaxespad=0.2,
    )
    tidy(axes)


def _draw_running(axes: Axes, listed: Sequence[RequestResult], origin: float) -> None:
    starts = [(result.start_time - origin, 1) for result in listed]
    ends = [(result.start_time - origin + result.latency, -1) for result in listed]
    events = sorted([*starts, *ends])
    times = [time for time, _ in events]
    running = np.cumsum([change for _, change in events])
    axes.fill_between(times, running, step="post", color=SKY, alpha=0.45, linewidth=0)
    axes.step(times, running, where="post", color=BLUE, linewidth=1.0)
    axes.set_ylabel("in flight")
    axes.set_ylim(0, 1.06 * float(max(running)) or 1.0)  # no mark there is cut
    whole_numbers(axes.yaxis)
    axes.set_xlim(left=0)
    tidy(axes)
