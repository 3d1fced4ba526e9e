"""The command's exit codes and messages, and that it starts at once."""

from __future__ import annotations

import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest

import vllm_lite
from vllm_lite.cli.main import main

ROOT = Path(__file__).resolve().parents[3]


def test_bare_command_and_help_print_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    text = capsys.readouterr().out
    assert text.startswith("usage: vllm-lite") and "serve" in text
    assert main(["--help"]) == 0
    assert capsys.readouterr().out == text


def test_version_is_the_project_s(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["-v"]) == main(["--version"]) == 0
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert capsys.readouterr().out.split() == [project["version"]] * 2
    assert vllm_lite.__version__ == project["version"]


@pytest.mark.parametrize("word", ["sreve", "--nothing"])
def test_an_unknown_command_is_exit_code_2(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([word]) == 2
    assert f"error: unknown {'option' if word[0] == '-' else 'command'} {word!r}" in (
        capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ("sreve", "serve"),
        ("lst", "list"),
        ("pul demo", "pull"),
        ("shw", "show"),
        ("stpo", "stop"),
        ("--versoin", "--version"),
        ("serve demo --max-modl-len 5", "--max-model-len"),
        ("pull demo --revison main", "--revision"),
        ("stop --alll", "--all"),
        ("bench latenci", "latency"),
        ("bench sweep srve", "serve"),
    ],
)
def test_a_mistyped_word_is_answered_with_the_nearest(
    words: str, meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code: object = main(words.split())
    except SystemExit as end:
        code = end.code
    last = capsys.readouterr().err.splitlines()[-1]
    assert code == 2 and f"did you mean {meant}?" in last


def test_a_user_s_mistake_is_one_line_and_exit_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "demo", "--enable-log-outputs"]) == 1
    assert capsys.readouterr().err == (
        "vllm-lite serve: error: --enable-log-outputs needs --enable-log-requests\n"
    )


@pytest.mark.parametrize(
    ("command", "topics"),
    [
        ("", ["serve", "bench"]),
        ("serve demo", ["Frontend", "listgroup"]),
        ("chat", ["options", "listgroup"]),
        ("complete", ["options", "listgroup"]),
        ("run-batch", ["SchedulerConfig", "listgroup"]),
        ("collect-env", ["listgroup"]),
        ("bench", ["latency", "sweep"]),
        ("bench serve", ["listgroup"]),
        ("bench sweep", ["serve"]),
        ("bench sweep serve", ["listgroup"]),
        *((name, ["listgroup"]) for name in ("run", "ps", "stop", "pull", "list", "show", "rm")),
    ],
)
@pytest.mark.parametrize("word", ["--help=nonsense", "-h=nonsense"])
def test_help_on_nothing_lists_the_topics(
    command: str, topics: list[str], word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code: object = main([*command.split(), word])
    except SystemExit as end:
        code = end.code
    shown, errors = capsys.readouterr()
    assert (code, shown) == (2, "") and errors.startswith("usage: ")
    assert "nonsense" in errors.splitlines()[-1]
    assert all(topic in errors.splitlines()[-1] for topic in topics), errors


def test_what_this_build_lacks_is_one_line_and_exit_code_2() -> None:
    def run(*words: str) -> tuple[int, list[str]]:
        done = subprocess.run(
            [sys.executable, "-m", *words], capture_output=True, text=True, cwd=ROOT
        )
        return done.returncode, done.stderr.splitlines()

    code, (usage, line) = run("vllm_lite", "serve", "demo", "--enable-lora")
    assert code == 2 and usage.startswith("usage: vllm-lite serve")
    assert line.startswith("vllm-lite serve: error: --enable-lora is not available in this build; ")
    module = "vllm_lite.entrypoints.openai.api_server"
    code, (warning, *same) = run(module, "--model", "demo", "--enable-lora")
    assert code == 2 and same == [usage, line]
    assert f"python -m {module} is deprecated; use `vllm-lite serve MODEL`" in warning


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys; from vllm_lite.cli.main import main\n"
        "try: main(['serve', '--help=all'])\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'numpy', 'pydantic', 'fastapi', 'huggingface_hub', 'transformers'}\n"
        "sys.exit(' '.join(heavy & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert (done.returncode, done.stderr) == (0, "")


def test_help_is_instant() -> None:
    times = []
    for _ in range(3):
        start = time.perf_counter()
        subprocess.run(
            [sys.executable, "-m", "vllm_lite", "--help"], check=True, capture_output=True, cwd=ROOT
        )
        times.append(time.perf_counter() - start)
    assert min(times) < 0.3
