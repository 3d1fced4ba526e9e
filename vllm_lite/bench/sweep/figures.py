"""`bench sweep plot` and `plot_pareto`: curves over the runs of an experiment, as PNG files.

A point is the mean of a combination's runs; its bars are their standard deviation.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from vllm_lite.bench.options.sweep import SweepParetoOptions, SweepPlotOptions
from vllm_lite.bench.plots import BLUE, COLOURS, WAITING, Plotter, from_zero, tidy, whole_numbers
from vllm_lite.bench.sweep.experiment import file_name
from vllm_lite.bench.sweep.table import (
    SOURCE,
    Bins,
    Filters,
    Group,
    Row,
    check_names,
    grouped,
    names,
    number,
    read_rows,
)
from vllm_lite.errors import UsageError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MARKERS = "osD^vP"
_AXES = {
    "total_token_throughput": "total throughput (tokens/s)",
    "output_throughput": "output throughput (tokens/s)",
    "request_throughput": "throughput (requests/s)",
    "request_goodput": "goodput (requests/s)",
    "request_rate": "request rate (requests/s)",
    "max_concurrency": "concurrent requests",
}
_COUNTS = ("max_concurrency", "num_prompts", "max_num_seqs", "completed")
# What multiplies to the devices of a run, by either name.
_SIZES = (
    ("tensor_parallel_size", "tp"),
    ("pipeline_parallel_size", "pp"),
    ("data_parallel_size", "dp"),
)


@dataclass(frozen=True, slots=True)
class Point:
    """The mean of some runs and how far they differ."""

    x: float
    y: float
    spread_x: float
    spread_y: float


def run_sweep_plot(experiment: str, options: SweepPlotOptions) -> int:
    """Draw the figures; raises UsageError."""
    folder = Path(experiment).expanduser()
    filters, bins = Filters.parse(options.filter_by), Bins.parse(options.bin_by)
    by = [names(text) for text in (options.fig_by, options.row_by, options.col_by)]
    rows = read_rows(folder)
    axes = [options.var_x, options.var_y]
    check_names(
        rows, [*by[0], *by[1], *by[2], *names(options.curve_by), *filters.names, *bins.names, *axes]
    )
    rows = bins.apply(filters.keep(rows))
    if not rows:
        raise UsageError(f"no run is left by --filter-by {options.filter_by}")
    plotter = None if options.dry_run else Plotter()
    for group, own in grouped(rows, by[0]).items():
        words = [options.fig_name, *(f"{name}={value}" for name, value in group)]
        path = folder / options.fig_dir / file_name("-".join(words) + ".png")
        if plotter is None:
            sys.stdout.write(f"{path}: {len(own)} runs\n")
            continue
        _draw_figure(plotter, own, by[1], by[2], options, path)
        sys.stdout.write(f"Wrote {path}\n")
    return 0


def _draw_figure(
    plotter: Plotter,
    rows: Sequence[Row],
    row_by: Sequence[str],
    col_by: Sequence[str],
    options: SweepPlotOptions,
    path: Path,
) -> None:
    """A grid of panels with the same axes."""
    down, across = list(grouped(rows, row_by)), list(grouped(rows, col_by))
    panels = grouped(rows, [*row_by, *col_by])
    curves = sorted(grouped(rows, names(options.curve_by)), key=_in_order)
    height = options.fig_height
    figure = plotter.figure(height * 1.35 * len(across), height * len(down))
    grid = figure.subplots(len(down), len(across), sharex=True, sharey=True, squeeze=False)
    for i, row_group in enumerate(down):
        for j, col_group in enumerate(across):
            axes = grid[i][j]
            _draw_panel(axes, panels.get((*row_group, *col_group), []), curves, options)
            axes.set_title(_title((*row_group, *col_group)), loc="left", fontsize=11)
            for scale, change in (
                (options.scale_x, axes.set_xscale),
                (options.scale_y, axes.set_yscale),
            ):
                if scale == "sqrt":
                    change("function", functions=(np.sqrt, np.square))
                elif scale is not None:
                    change(scale)
            if i == len(down) - 1:
                axes.set_xlabel(_axis(options.var_x))
            if j == 0:
                axes.set_ylabel(_axis(options.var_y))
    _fit(list(grid.flat), options)
    if curves != [()]:
        grid[0][0].legend(frameon=False, fontsize=9)
    plotter.save(figure, path, options.fig_dpi)


def _draw_panel(
    axes: Axes, rows: Sequence[Row], curves: Sequence[Group], options: SweepPlotOptions
) -> None:
    is_binned = options.var_x in Bins.parse(options.bin_by).names
    by_curve = grouped(rows, names(options.curve_by))
    for place, curve in enumerate(curves):
        own = by_curve.get(curve, [])
        points = points_of(
            own, options.var_x, options.var_y, options.var_x if is_binned else SOURCE
        )
        if not points:
            continue
        bars = options.error_bars
        axes.errorbar(
            [point.x for point in points],
            [point.y for point in points],
            xerr=[point.spread_x for point in points] if bars and not is_binned else None,
            yerr=[point.spread_y for point in points] if bars else None,
            color=COLOURS[place % len(COLOURS)],
            marker=_MARKERS[place % len(_MARKERS)],
            markersize=5,
            linewidth=1.6,
            elinewidth=0.9,
            capsize=2.5,
            label=_title(curve),
        )
    tidy(axes)


def _fit(panels: Sequence[Axes], options: SweepPlotOptions) -> None:
    """Show every point of every panel, whose axes are shared."""
    drawn = [axes.dataLim for axes in panels if axes.has_data()]
    first = panels[0]
    if drawn and options.scale_x in (None, "linear"):
        from_zero(first.set_xlim, max(limits.xmax for limits in drawn))
        if options.var_x in _COUNTS:
            whole_numbers(first.xaxis)
    if drawn and options.scale_y in (None, "linear"):
        from_zero(first.set_ylim, max(limits.ymax for limits in drawn))
        if options.var_y in _COUNTS:
            whole_numbers(first.yaxis)


def points_of(rows: Sequence[Row], x: str, y: str, together: str) -> list[Point]:
    """A point for all runs that have `together` in common, from the least x to the most."""
    points = []
    for own in grouped(rows, [together]).values():
        pairs = [(number(row, x), number(row, y)) for row in own]
        known = np.array([pair for pair in pairs if None not in pair], dtype=np.float64)
        if len(known):
            (mean_x, mean_y), (spread_x, spread_y) = known.mean(axis=0), known.std(axis=0)
            points.append(Point(*(float(v) for v in (mean_x, mean_y, spread_x, spread_y))))
    return sorted(points, key=lambda point: point.x)


def run_sweep_pareto(experiment: str, options: SweepParetoOptions) -> int:
    """Draw throughput of a device against that of a user; raises UsageError."""
    folder = Path(experiment).expanduser()
    rows = read_rows(folder)
    check_names(rows, ["output_throughput"])
    prepared = [row for one in rows if (row := _per_user(one, options)) is not None]
    if not prepared:
        raise UsageError("no run tells its users; --user-count-var names a variable that does")
    if len(prepared) < len(rows):
        sys.stdout.write(f"{len(rows) - len(prepared)} runs do not tell their users\n")
    path = folder / "pareto" / "PARETO.png"
    if options.dry_run:
        sys.stdout.write(f"{path}: {len(prepared)} runs\n")
        return 0
    best = frontier(prepared)
    plotter = Plotter()
    figure = plotter.figure(8.6, 5.6)
    axes = figure.add_subplot()
    axes.scatter(
        [row["tokens_per_user"] for row in prepared],
        [row["tokens_per_gpu"] for row in prepared],
        color=WAITING,
        s=30,
        label="all runs",
    )
    xs = [row["tokens_per_user"] for row in best]
    ys = [row["tokens_per_gpu"] for row in best]
    axes.plot(xs, ys, color=BLUE, marker="o", markersize=5, linewidth=1.8, label="Pareto frontier")
    for row in best:
        label = "\n".join(f"{name}={row[name]}" for name in names(options.label_by) if name in row)
        place = (row["tokens_per_user"], row["tokens_per_gpu"])
        axes.annotate(label, place, xytext=(6, 5), textcoords="offset points", fontsize=8)
    axes.set_xlabel("output tokens/s of a user")
    axes.set_ylabel("output tokens/s of a device")
    # Room for the words at the far ends.
    axes.set_xlim(0, 1.18 * max(row["tokens_per_user"] for row in prepared))
    axes.set_ylim(0, 1.12 * max(row["tokens_per_gpu"] for row in prepared))
    axes.legend(frameon=False, loc="lower left")
    tidy(axes)
    sys.stdout.write(f"Wrote {plotter.save(figure, path)}\n")
    return 0


def frontier(rows: Sequence[Row]) -> list[Row]:
    """The runs that no other beats in both, from the fewest tokens per user to the most."""
    best: list[Row] = []
    for row in sorted(rows, key=lambda row: (-row["tokens_per_user"], -row["tokens_per_gpu"])):
        if not best or row["tokens_per_gpu"] > best[-1]["tokens_per_gpu"]:
            best.append(row)
    return best[::-1]


def _per_user(row: Row, options: SweepParetoOptions) -> Row | None:
    users = number(row, options.user_count_var) or number(row, "max_concurrent_requests")
    throughput = number(row, "output_throughput")
    if not users or throughput is None:
        return None
    devices = number(row, options.gpu_count_var) if options.gpu_count_var else None
    if not devices:
        devices = float(np.prod([number(row, a) or number(row, b) or 1.0 for a, b in _SIZES]))
    return {
        **row,
        "gpu_count": f"{devices:g}",
        "tokens_per_user": throughput / users,
        "tokens_per_gpu": throughput / devices,
    }


def _in_order(group: Group) -> list[tuple[float, str]]:
    """Numbers by their size, before words by the alphabet."""
    found = [(number(dict([one]), one[0]), one[1]) for one in group]
    return [(np.inf if value is None else value, text) for value, text in found]


def _title(group: Group) -> str:
    return ", ".join(f"{name}={value}" for name, value in group)


def _axis(name: str) -> str:
    if name.endswith("_ms"):
        kind, _, metric = name.removesuffix("_ms").partition("_")
        return f"{kind} {metric.upper().replace('_', ' ')} (ms)"
    return _AXES.get(name, name)
