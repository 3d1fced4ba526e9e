"""What holds for every test: Triton interprets its kernels, Ctrl-C works, parsers can be undone."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from vllm_lite.parsers.reasoning_formats import REASONING_FORMATS
from vllm_lite.parsers.tools.formats import TOOL_FORMATS

# Before anything imports Triton, whose own functions are made by what this says.
os.environ["TRITON_INTERPRET"] = "1"
# A shell that starts the tests in its background has them, and all their commands, ignore it.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def parser_names() -> Iterator[None]:
    """Takes the names that a test's plugins registered away again."""
    tools, reasoning = dict(TOOL_FORMATS), dict(REASONING_FORMATS)
    yield
    TOOL_FORMATS.clear()
    TOOL_FORMATS.update(tools)
    REASONING_FORMATS.clear()
    REASONING_FORMATS.update(reasoning)
