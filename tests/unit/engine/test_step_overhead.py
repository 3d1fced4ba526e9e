"""benchmarks/step_overhead.py: the real core over no model, watched phase by phase."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[3] / "benchmarks" / "step_overhead.py"


def test_every_phase_of_a_step_is_seen(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    words = ["--sequences", "3", "--steps", "24", "--prompt-len", "20", "--json", str(report)]
    subprocess.run(
        [sys.executable, SCRIPT, "--sampling", "drawn", *words],
        check=True,
        timeout=120,
        stdout=subprocess.DEVNULL,
    )
    (found,) = json.loads(report.read_text())
    phases = found["phases_us"]
    seen = {"schedule", "worker: batch", "worker: sampling", "update from output", "message out"}
    assert seen <= {name for name, microseconds in phases.items() if microseconds > 0}
    assert 0 < max(phases.values()) <= found["step_us"] * 2
