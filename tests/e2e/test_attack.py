"""A small part of tests/attack/fuzz_routes.py: its requests, and clients that leave."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.attack.fuzz_routes import attack
from tests.e2e.server_process import ServerProcess

FLAGS = ("--served-model-name", "demo", "--max-num-seqs", "16", "--max-model-len", "512")


def test_no_request_and_no_leaving_client_is_the_servers_fault(
    tmp_path: Path,
) -> None:
    flags = ("--num-gpu-blocks-override", "300", "--batch-storage-dir", str(tmp_path))
    with ServerProcess(*FLAGS, *flags) as server:
        report = asyncio.run(attack(server.url, server.process.pid, 20261122, (300, 40, 0.0)))
        assert server.process.poll() is None, server.log()[-2000:]
    assert not report.faults
    assert report.aborts == 40 and sum(report.statuses.values()) >= 300
    # A body of the kind that is right, and one that is not, were both among them.
    assert report.statuses["200"] > 60 and report.statuses["400"] > 60
