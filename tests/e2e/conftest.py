"""One demo server shared by the end-to-end tests that do not harm it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.server_process import ServerProcess


@pytest.fixture(scope="session")
def demo_server() -> Iterator[ServerProcess]:
    with ServerProcess("--max-model-len", "2048", "--num-gpu-blocks-override", "2000") as server:
        yield server
