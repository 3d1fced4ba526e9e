"""Torch's libraries, loaded beside an engine core's first imports."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from vllm_lite.engine.core import preload


def test_torch_finds_its_libraries_loaded() -> None:
    code = (
        "import sys; from vllm_lite.engine.core.preload import load_torch_libraries; "
        "load_torch_libraries().join(); assert 'torch' not in sys.modules; "
        "print('libtorch_cpu.so' in open('/proc/self/maps').read()); "
        "import torch; print(int(torch.ones(2, 2).matmul(torch.ones(2, 2)).sum()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "8"]


def test_libraries_of_other_names_are_left_to_torch(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").touch()
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    preload._load()
