"""Settings of the whole suite: interpreted Triton, Ctrl-C, marks, and each folder's time."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections import defaultdict
from collections.abc import Iterator

import pytest
from _pytest.terminal import TerminalReporter

from vllm_lite.config.machine import cuda_obstacle
from vllm_lite.parsers.reasoning_formats import REASONING_FORMATS
from vllm_lite.parsers.tools.formats import TOOL_FORMATS

# Before anything imports Triton, whose own functions are made by what this says.
os.environ["TRITON_INTERPRET"] = "1"
# A shell that starts the tests in its background has them, and all their commands, ignore it.
signal.signal(signal.SIGINT, signal.default_int_handler)


# Minutes that all tests of a folder may take one after another, on an idle machine with two cores.
BUDGETS = {"attack": 3, "e2e": 20, "kernels": 8, "models": 6, "server": 5, "unit": 8}


def pytest_collection_finish() -> None:
    """Nothing of all that was imported becomes garbage: who collects some need not look there."""
    if "triton" in sys.modules:
        from tests.interpreter import quicken

        quicken()
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    """Modules are taken apart at the end as if nothing had been frozen."""
    gc.unfreeze()


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") is not None:
        obstacle = cuda_obstacle()
        if obstacle is not None:
            pytest.skip(obstacle)


def pytest_terminal_summary(terminalreporter: TerminalReporter) -> None:
    """Prints each folder's time beside its budget."""
    spent: dict[str, float] = defaultdict(float)
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                folder = report.nodeid.partition("::")[0].split("/")[1]
                spent[folder.removesuffix(".py")] += report.duration
    if sum(spent.values()) < 60:
        return
    terminalreporter.section("minutes by folder")
    for folder, seconds in sorted(spent.items()):
        budget = BUDGETS.get(folder)
        over = " over" if budget and seconds > 60 * budget else ""
        terminalreporter.write_line(f"{folder:<28}{seconds / 60:6.1f} of {budget or '-'}{over}")


@pytest.fixture
def parser_names() -> Iterator[None]:
    """Removes the parser names that a test's plugins registered."""
    tools, reasoning = dict(TOOL_FORMATS), dict(REASONING_FORMATS)
    yield
    TOOL_FORMATS.clear()
    TOOL_FORMATS.update(tools)
    REASONING_FORMATS.clear()
    REASONING_FORMATS.update(reasoning)
