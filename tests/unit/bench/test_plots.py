"""Pictures are PNG files of a sensible size, whatever the values; matplotlib is optional."""

from __future__ import annotations

import struct
import subprocess
import sys
from array import array
from pathlib import Path

import numpy as np
import pytest

from vllm_lite.bench.plots import Plotter, _draw_distribution, _draw_running
from vllm_lite.bench.recorder import RequestResult
from vllm_lite.errors import UsageError


def size_of(path: Path) -> tuple[int, int]:
    """Width and height of a PNG file."""
    data = path.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", data[16:24])
    return width, height


def result(start: float, gaps: list[float]) -> RequestResult:
    itls = array("d", gaps)
    return RequestResult(8, 1, start, 0.0, 0.1, itls, 0.1 + sum(gaps), len(gaps) + 1)


def test_distributions_have_a_panel_each(tmp_path: Path) -> None:
    values = {"ttft": [0.1, 0.2, 40.0], "itl": [0.0, 0.0], "tpot": []}
    both = size_of(Plotter().distributions(values, tmp_path / "made" / "both.png"))
    one = size_of(Plotter().distributions({"e2el": [1.0]}, tmp_path / "one.png"))
    assert both == (2 * one[0], one[1])


def test_a_timeline_and_the_lengths_of_one_request_or_many(tmp_path: Path) -> None:
    plotter = Plotter()
    for count in (1, 300):
        results = [result(0.01 * i, [0.01, 0.03, 0.2] * (i % 4)) for i in range(count)]
        width, height = size_of(plotter.timeline(results, (25, 50), tmp_path / "t.png"))
        assert 300 < height <= width
        assert size_of(plotter.lengths(results, tmp_path / "l.png"))[0] > 1000


def test_percentiles_lie_on_the_curve_and_counts_have_whole_ticks() -> None:
    axes = Plotter().figure(5, 4).add_subplot()
    values = np.array([1.0, 2.0, 3.0, 50.0])
    _draw_distribution(axes, values, "k")
    marks = [(line.get_xdata()[0], line.get_ydata()[0]) for line in axes.lines[2::2]]
    assert marks == [(2.0, 50), (50.0, 90), (50.0, 99)]
    _draw_running(axes, [result(0.0, [0.1]), result(0.05, [0.1])], 0.0)
    assert all(tick == int(tick) for tick in axes.get_yticks())
    assert axes.get_ylim() == (0, 1.06 * 2)


def test_what_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot write"):
        Plotter().lengths([result(0, [])], tmp_path / "file" / "x.png")


def test_without_matplotlib_one_line_tells_how_to_get_it() -> None:
    # None in sys.modules makes the import fail; the benchmark must say so before it does anything.
    code = (
        "import sys; sys.modules['matplotlib'] = None\n"
        "from vllm_lite.cli.main import main\n"
        "sys.exit(main(['bench', 'serve', '--plot']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr == (
        "vllm-lite bench: error: plots need matplotlib; install it with: "
        "pip install 'vllm-lite[bench]'\n"
    )
