"""The table as a picture: how many times better each figure is, beside what was aimed at."""

from __future__ import annotations

from pathlib import Path

from peers.results import Line, Results, lines
from peers.workloads import PAIRS, TARGET_RATIOS
from vllm_lite.bench.plots import BLUE, ORANGE, VERMILION, Plotter, tidy


def draw(results: Results, path: Path) -> bool:
    """Write the picture; False where there is nothing to compare. Raises UsageError."""
    panels = {
        pair: [line for line in lines(results) if line.engine == pair[0] and line.ratio]
        for pair in PAIRS
    }
    shown = {pair: listed for pair, listed in panels.items() if listed}
    if not shown:
        return False
    plotter = Plotter()
    heights = [len(listed) + 2 for listed in shown.values()]
    figure = plotter.figure(9.0, 0.3 * sum(heights) + 0.6)
    all_axes = figure.subplots(len(shown), 1, squeeze=False, gridspec_kw={"height_ratios": heights})
    for axes, ((engine, peer), listed) in zip(all_axes[:, 0], shown.items(), strict=True):
        _draw_panel(axes, listed)
        names = results.engines
        title = f"vllm-lite against {names[peer]['title']}, {names[engine]['weights']}"
        axes.set_title(title, loc="left", fontsize=11, fontweight="bold")
    all_axes[-1, 0].set_xlabel("times better (bar: measured, mark: target)")
    plotter.save(figure, path)
    return True


def _draw_panel(axes, listed: list[Line]) -> None:  # type: ignore[no-untyped-def]
    titles = [line.row.title for line in listed]
    ratios = [line.ratio or 1.0 for line in listed]
    wanted = [TARGET_RATIOS.get((line.row.name, line.engine)) for line in listed]
    pairs = list(zip(ratios, wanted, strict=True))
    colours = [VERMILION if least and ratio < least else BLUE for ratio, least in pairs]
    places = range(len(listed))
    axes.barh(places, [ratio - 1 for ratio in ratios], left=1, color=colours, height=0.62)
    for place, (ratio, least) in enumerate(pairs):
        axes.text(max(ratio, 1.0), place, f" {ratio:.2f} ", va="center", fontsize=8.5)
        if least is not None:
            axes.plot([least] * 2, [place - 0.42, place + 0.42], color=ORANGE, linewidth=2.5)
    axes.axvline(1, color="#555555", linewidth=0.8)
    axes.set_xscale("log", subs=(2, 5))
    for which in (axes.xaxis.set_major_formatter, axes.xaxis.set_minor_formatter):
        which("{x:g}")
    axes.set_yticks(list(places), titles, fontsize=9)
    axes.invert_yaxis()
    axes.margins(x=0.12)
    tidy(axes)
