"""Narrow numbers cost little: perplexity on the benchmark's text, the quick way."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "perplexity.py"


def test_bfloat16_and_caches_of_one_byte_stay_within_their_bounds(tmp_path: Path) -> None:
    """Four windows of the text; the script itself compares with the bounds and fails beyond."""
    settings = ["float32", "bfloat16", "kv fp8", "kv fp8_per_token_head", "kv int8"]
    found = tmp_path / "perplexity.json"
    command = [sys.executable, str(SCRIPT), "--windows", "4", "--window", "384"]
    command += ["--json", str(found), "--settings", *settings]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    results = json.loads(found.read_text())["results"]
    assert [result["setting"] for result in results] == settings
    assert all(result["num_scored"] == 4 * 383 for result in results)
    assert all(5 < result["perplexity"] < 60 for result in results)
