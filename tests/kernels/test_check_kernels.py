"""The script that checks kernels on a GPU runs without one, covers all and can fail."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton")

from tests.kernels import emulated_cuda
from vllm_lite.kernels.gpu.triton import ops
from vllm_lite.kernels.reference.ops import GpuOps

FOLDER = Path(__file__).parents[2] / "benchmarks/gpu"
# They run on the host, or by torch's own kernels.
NOT_KERNELS = {
    "dequantize_gguf",
    "embedding",
    "gated_linear",
    "linear",
    "pack_experts",
    "pack_grouped",
    "pack_heads",
    "pack_linear",
    "pack_quantized",
    "penalize_tokens",
    "unpack_words",
}


@pytest.fixture(autouse=True)
def scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))


def run(*options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(FOLDER / "check_kernels.py"), *options]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.mark.skipif(emulated_cuda.compiler() is None, reason="no C++ compiler for the emulation")
def test_dry_run_reports_that_nothing_was_measured(tmp_path: Path) -> None:
    done = run("--dry-run", "--only", "decode torch.float16 D=64", "--output", f"{tmp_path}/out")
    assert done.returncode == 0, done.stderr[-3000:]
    assert "6 of 6 right" in done.stdout and "nothing was measured" in done.stdout
    assert '"is_dry_run": true' in (tmp_path / "out").read_text()


def test_sanitizers_run_only_cuda_kernels() -> None:
    lines = run("--dry-run", "--sanitize").stdout.splitlines()
    assert [line.split()[2] for line in lines] == ["memcheck", "racecheck"]
    assert all(line.endswith("check_kernels.py --only cuda") for line in lines)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_the_error_names_the_dry_run() -> None:
    done = run()
    assert done.returncode == 1 and "--dry-run" in done.stderr


def test_every_operation_is_checked() -> None:
    import check_kernels

    checked = {case.name.split()[0] for backend, case, _ in check_kernels.jobs(is_dry=True)}
    declared = {name for name in dir(GpuOps) if not name.startswith("_")}
    assert checked == declared - NOT_KERNELS


def test_a_wrong_result_fails() -> None:
    import check_kernels
    import kernel_cases

    case = next(kernel_cases.layer_cases(torch.float16, 3, 64))

    class Wrong:
        def rms_norm(self, *arguments: object) -> torch.Tensor:
            result = ops.rms_norm(*arguments)
            result[1, 2] *= 1.1
            return result

    right, allowed = check_kernels.check(case, ops, "cpu")
    wrong, _ = check_kernels.check(case, Wrong(), "cpu")
    assert right <= allowed < wrong


def test_a_case_that_raises_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    import argparse

    import check_kernels
    import kernel_cases

    first, second, *_ = kernel_cases.layer_cases(torch.float16, 3, 64)

    class Broken:
        fused_add_rms_norm = staticmethod(ops.fused_add_rms_norm)

    jobs = [("triton", first, Broken()), ("triton", second, Broken())]
    monkeypatch.setattr(check_kernels, "jobs", lambda *_: jobs)
    args = argparse.Namespace(dry_run=True, small=False, only="", share="0/1", budget_s=60.0)
    results, num_left = check_kernels.check_all(args)
    assert num_left == 0
    assert "rms_norm" in results[0]["failure"] and results[0]["error"] == check_kernels.FAILED
    assert results[1]["error"] <= results[1]["allowed"]
    args.budget_s = 0.0
    assert check_kernels.check_all(args) == ([], 2)
