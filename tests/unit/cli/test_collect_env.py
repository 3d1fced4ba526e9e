"""`collect-env`: complete, quick, and silent about secrets."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from vllm_lite.cli import collect_env
from vllm_lite.cli.main import main
from vllm_lite.errors import UsageError

ROOT = Path(__file__).resolve().parents[3]
Captured = pytest.CaptureFixture[str]
SECTIONS = [
    "System Info",
    "PyTorch Info",
    "Python Environment",
    "CPU Info",
    "Versions of relevant libraries",
    "vLLM-lite Info",
    "Environment Variables",
]


def report(capsys: Captured) -> str:
    assert main(["collect-env"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return out


def fact(text: str, label: str) -> str:
    found = re.search(rf"^{re.escape(label)} *: (.*)$", text, re.MULTILINE)
    assert found is not None, f"no {label} in\n{text}"
    return found[1]


def test_every_section_has_its_box(capsys: Captured) -> None:
    text = report(capsys)
    assert text.startswith("Collecting environment information...\n")
    titles = re.findall(r"^=+\n *(.+)\n=+$", text, re.MULTILINE)
    assert [title for title in titles if "GPU" not in title] == SECTIONS
    assert re.search(r"^\[pip3\] torch==\d", text, re.MULTILINE)


def test_it_tells_what_torch_tells(capsys: Captured) -> None:
    import torch

    text = report(capsys)
    assert fact(text, "PyTorch version") == torch.__version__
    assert fact(text, "CUDA used to build PyTorch") == (torch.version.cuda or "N/A")


def test_it_tells_which_kernels_a_run_would_choose(
    capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vllm_lite.kernels import dispatch

    monkeypatch.setattr(dispatch, "_selected", None)
    monkeypatch.setenv("VLLM_CPU_NUM_THREADS", "3")
    for forced in ("auto", "portable", "reference"):
        monkeypatch.setenv("VLLM_LITE_CPU_ISA", forced)
        dispatch.select_ops("cpu")
        chosen = dispatch.describe().partition(" ")[0].rstrip(",")
        text = report(capsys)
        assert re.split(r"[ ,]", fact(text, "Kernels chosen"))[0] == chosen
        assert fact(text, "Compute threads").startswith("3 ")
    monkeypatch.setenv("VLLM_LITE_CPU_ISA", "neon9")
    assert fact(report(capsys), "Kernels chosen").startswith("none: VLLM_LITE_CPU_ISA=neon9")
    monkeypatch.setenv("VLLM_LITE_CPU_ISA", "auto")
    dispatch.select_ops("cpu")


def test_secrets_are_masked(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HF_TOKEN", "VLLM_API_KEY", "OPENAI_API_KEY", "VLLM_DB_PASSWORD", "HF_SECRET_1"):
        monkeypatch.setenv(name, "hunter2")
    monkeypatch.setenv("HF_ENDPOINT", "https://me:hunter2@hub.example/x?a=1&token=hunter2&b=2")
    monkeypatch.setenv("VLLM_LOGGING_LEVEL", "DEBUG")
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")
    monkeypatch.setenv("SOME_OTHER_NAME", "private")
    # Shown because it is no number, and still not in full.
    monkeypatch.setenv("VLLM_CPU_NUM_THREADS", "Bearer hunter2")
    text = report(capsys)
    assert "hunter2" not in text and "private" not in text
    for line in (
        "HF_TOKEN=***",
        "VLLM_API_KEY=***",
        "VLLM_DB_PASSWORD=***",
        "HF_ENDPOINT=https://***@hub.example/x?a=1&token=***&b=2",
        "VLLM_LOGGING_LEVEL=DEBUG",
        "TOKENIZERS_PARALLELISM=false",
        "VLLM_CPU_NUM_THREADS=Bearer ***",
    ):
        assert f"\n{line}\n" in text


def test_a_machine_without_lscpu_is_described_all_the_same(
    capsys: Captured, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    cpu = report(capsys).partition("CPU Info")[2].partition("Versions of")[0]
    assert len(cpu.splitlines()) > 5


def test_what_fails_costs_only_its_own_line(
    capsys: Captured, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # No tool can be found, the threads are nonsense, and torch is not there.
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("VLLM_CPU_NUM_THREADS", "many")
    monkeypatch.setattr("importlib.util.find_spec", no_module)
    text = report(capsys)
    assert fact(text, "GCC version") == "Could not collect"
    assert fact(text, "PyTorch version") == "Could not collect"
    assert fact(text, "Compute threads").startswith("Could not collect: VLLM_CPU_NUM_THREADS")
    assert "a C++ compiler" in fact(text, "Missing")
    assert fact(text, "vLLM-lite Version")


def no_module(name: str, package: str | None = None) -> ModuleSpec | None:
    return None


def test_a_tool_that_hangs_is_given_up(
    monkeypatch: pytest.MonkeyPatch, capsys: Captured, tmp_path: Path
) -> None:
    tool = tmp_path / "cmake"
    tool.write_text("#!/bin/sh\nexec sleep 60\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(collect_env, "_COMMAND_SECONDS", 0.1)
    assert fact(report(capsys), "CMake version") == "Could not collect"


def test_gaps_are_named(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    from packaging.specifiers import SpecifierSet

    wanted = [("msgspec", SpecifierSet(">=99")), ("no-such-thing", SpecifierSet(">=1"))]
    monkeypatch.setattr(collect_env, "_requirements", lambda: iter(wanted))
    monkeypatch.setattr(collect_env, "_compiled_kernels", lambda: ["portable"])
    missing = fact(report(capsys), "Missing")
    assert "AVX2: the portable kernels are slow" in missing
    assert re.search(r"the package msgspec>=99 \(it is [\d.]+\)", missing)
    assert "the package no-such-thing>=1" in missing


def test_a_usage_error_in_a_probe_is_shown() -> None:
    def probe() -> object:
        raise UsageError("X must be a number")

    assert collect_env._collect(probe) == "Could not collect: X must be a number"


def test_neither_help_nor_the_report_loads_torch() -> None:
    code = (
        "import sys; from vllm_lite.cli.main import main\n"
        "try: main(['collect-env', *sys.argv[1:]])\n"
        "except SystemExit: pass\n"
        "sys.exit(' '.join({'torch', 'numpy', 'openai'} & set(sys.modules)) or 0)"
    )
    for words in ([], ["--help"]):
        done = subprocess.run(
            [sys.executable, "-c", code, *words], capture_output=True, text=True, cwd=ROOT
        )
        assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("usage: vllm-lite collect-env [-h]\n")


def test_it_takes_no_words(capsys: Captured) -> None:
    with pytest.raises(SystemExit) as leaving:
        main(["collect-env", "all"])
    assert leaving.value.code == 2
    assert "unrecognized arguments: all" in capsys.readouterr().err
