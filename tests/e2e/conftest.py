"""One demo server shared by the end-to-end tests that do not harm it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.server_process import ServerProcess

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give each test here a second try, shown as such: whole processes meet a busy machine."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.flaky(reruns=1))


@pytest.fixture(scope="session")
def demo_server() -> Iterator[ServerProcess]:
    with ServerProcess("--max-model-len", "2048", "--num-gpu-blocks-override", "2000") as server:
        yield server
