"""Narrow numbers cost little: perplexity on the benchmark's text, the quick way."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


def run(script: str, *words: str) -> None:
    command = [sys.executable, str(BENCHMARKS / script), *words]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]


@pytest.mark.parametrize("is_file", [True, False], ids=["gguf", "safetensors"])
def test_narrow_numbers_stay_within_their_bounds(is_file: bool, tmp_path: Path) -> None:
    """Four windows of the text; the script itself compares with the bounds and fails beyond."""
    settings = ["float32", "bfloat16", "kv fp8", "kv fp8_per_token_head", "kv int8"]
    model = "demo"
    if is_file:
        settings += ["weights gguf"]
    else:
        settings = ["float32", "weights int8"]
        model = str(tmp_path / "model")
        run("export_demo_checkpoint.py", model)
    found = tmp_path / "perplexity.json"
    words = ["--windows", "4", "--window", "384", "--json", str(found), "--model", model]
    run("perplexity.py", *words, "--settings", *settings)
    results = json.loads(found.read_text())["results"]
    assert [result["setting"] for result in results] == settings
    assert all(result["num_scored"] == 4 * 383 for result in results)
    assert all(5 < result["perplexity"] < 60 for result in results)
