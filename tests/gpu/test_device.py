"""The GPU backend on a real device: kernels and tokens. Skipped where there is none."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from vllm_lite.config.demo import fetch_demo

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]
ROOT = Path(__file__).parents[2]


def run(*words: object) -> str:
    """A command's output, its Triton kernels compiled rather than interpreted."""
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, *map(str, words)]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def test_kernels_agree_with_references_in_float64() -> None:
    run("benchmarks/gpu/check_kernels.py")


def test_demo_gives_transformers_tokens(tmp_path: Path) -> None:
    words = ["--sections", "tokens", "--demo", fetch_demo(), "--output", tmp_path / "out.json"]
    run("benchmarks/gpu/run.py", *words, "--folder", tmp_path)
    rows = json.loads((tmp_path / "out.json").read_text())["rows"]
    assert rows and not any(row["has_failed"] for row in rows)


def test_longer_graphs_change_no_token() -> None:
    assert "tokens are equal" in run("-m", "tests.gpu.longer_graphs")
