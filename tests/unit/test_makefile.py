"""A fresh machine builds the package once."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("target", ["demo", "test"])
def test_the_package_is_built_once(target: str, tmp_path: Path) -> None:
    venv = tmp_path / "venv"
    command = ["make", "--dry-run", f"VENV={venv}", target]
    planned = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert len(re.findall(r"pip install .*(--editable|\s\.)", planned)) == 1
    assert ("dev.txt" in planned) is (target == "test")
