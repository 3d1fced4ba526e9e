"""What holds for every test: Triton is interpreted, a clock gets a second try, plugins undo."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from vllm_lite.parsers.reasoning_formats import REASONING_FORMATS
from vllm_lite.parsers.tool_formats import TOOL_FORMATS

# Before anything imports Triton, whose own functions are made by what this says.
os.environ["TRITON_INTERPRET"] = "1"

# Where tests start processes and wait for them by the clock.
HERE = Path(__file__).parent
TIMED = [HERE / folder for folder in ("e2e", "server", "unit/bench", "unit/cli")]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give tests that wait by the clock a second try, shown as such: machines get busy."""
    for item in items:
        if any(folder in item.path.parents for folder in TIMED):
            item.add_marker(pytest.mark.flaky(reruns=1))


@pytest.fixture
def parser_names() -> Iterator[None]:
    """Takes the names that a test's plugins registered away again."""
    tools, reasoning = dict(TOOL_FORMATS), dict(REASONING_FORMATS)
    yield
    TOOL_FORMATS.clear()
    TOOL_FORMATS.update(tools)
    REASONING_FORMATS.clear()
    REASONING_FORMATS.update(reasoning)
