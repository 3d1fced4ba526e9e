"""Whether a GPU can be used is seen without loading torch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from vllm_lite.config import machine


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with all that a GPU needs."""
    monkeypatch.setattr(machine, "has_cuda_device", lambda: True)
    monkeypatch.setattr(machine, "_torch_is_for_cpus", lambda: False)
    monkeypatch.setattr(machine, "find_spec", lambda name: name)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.mark.usefixtures("gpu")
def test_each_lack_is_named_with_its_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    assert machine.cuda_obstacle() is None
    monkeypatch.setattr(machine, "find_spec", lambda name: None)
    assert "pip install triton" in (machine.cuda_obstacle() or "")
    monkeypatch.setattr(machine, "_torch_is_for_cpus", lambda: True)
    assert "install one for CUDA" in (machine.cuda_obstacle() or "")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert "CUDA_VISIBLE_DEVICES" in (machine.cuda_obstacle() or "")
    monkeypatch.setattr(machine, "has_cuda_device", lambda: False)
    assert "no NVIDIA GPU" in (machine.cuda_obstacle() or "")


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize(
    ("visible", "is_free"), [("0", True), ("GPU-8932,1", True), ("-1", False), (" ", False)]
)
def test_devices_may_be_hidden(
    monkeypatch: pytest.MonkeyPatch, visible: str, is_free: bool
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert (machine.cuda_obstacle() is None) == is_free


def test_a_gpu_is_a_device_and_no_drivers_file(tmp_path: Path) -> None:
    (tmp_path / "nvidiactl").touch()
    assert not machine.has_cuda_device(tmp_path)
    (tmp_path / "nvidia3").touch()
    assert machine.has_cuda_device(tmp_path)


def test_torchs_build_is_read_and_not_run() -> None:
    code = (
        "import sys; from vllm_lite.config import machine; cpu = machine._torch_is_for_cpus(); "
        "assert 'torch' not in sys.modules; import torch; "
        "assert cpu == (torch.version.cuda is None)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
