"""The grammar engines over the vocabulary of bytes, loaded once."""

from __future__ import annotations

import pytest

from tests.unit.structured_output.walks import BYTES
from vllm_lite.structured_output.compiler import GrammarEngines


@pytest.fixture(scope="session")
def engines() -> GrammarEngines:
    return GrammarEngines(BYTES)


@pytest.fixture(scope="session", params=["xgrammar", "guidance"])
def one_engine(request: pytest.FixtureRequest) -> GrammarEngines:
    """Each engine alone."""
    return GrammarEngines(BYTES, request.param)
