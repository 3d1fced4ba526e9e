"""`vllm-lite ps`: the servers that `vllm-lite run` started."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

from vllm_lite.cli.detached import servers
from vllm_lite.cli.models.cache import shown_age, table
from vllm_lite.config.options.cli import OptionParser


def parser() -> OptionParser:
    return OptionParser(
        "vllm-lite ps",
        "[-h]",
        "List the servers that `vllm-lite run` started and that are still there.",
        (),
        examples=("vllm-lite ps",),
    )


def run(argv: Sequence[str]) -> int:
    parser().parse_words(argv, 0, 0)
    rows = [("MODEL", "PID", "STATE", "STARTED", "URL", "LOG")]
    for server in servers.running():
        state = "ready" if server.is_ready else "not ready"
        age = shown_age(time.time() - server.since)
        rows.append((server.model, str(server.pid), state, age, server.url, str(server.log)))
    sys.stdout.write(table(rows))
    return 0
