"""README's figures of speed are those of the results file."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("readme_table")


def test_the_readme_is_as_the_results(script: Any) -> None:
    readme = script.README.read_text("utf-8")
    assert readme.count(script.BEGIN) == readme.count(script.END) == 1
    results = script.load(script.RESULTS, {})
    advice = "run `python benchmarks/readme_table.py`"
    assert script.with_figures(readme, results) == readme, advice


def test_only_what_stands_between_the_comments_changes(script: Any) -> None:
    results = script.load(script.RESULTS, {})
    page = f"# Title\n\n{script.BEGIN}\nold\n{script.END}\n\nafter\n"
    made = script.with_figures(page, results)
    assert made.startswith(f"# Title\n\n{script.BEGIN}\n") and made.endswith("\n\nafter\n")
    assert "old" not in made and results.machine["processor"] in made
    assert script.with_figures(made, results) == made


def test_the_tables_beside_the_results_are_theirs(script: Any) -> None:
    results = script.load(script.RESULTS, {})
    table = importlib.import_module("peers.results").table(results)
    assert script.RESULTS.with_suffix(".md").read_text("utf-8") == table + "\n"
