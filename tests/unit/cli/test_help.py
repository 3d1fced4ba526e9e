"""Every command's help: its usage line, its examples, and the scripts that complete words."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from vllm_lite.cli.bench import BENCHMARKS, benchmark_parser, sweep_parser
from vllm_lite.cli.completion import SHELLS
from vllm_lite.cli.main import COMMANDS, main
from vllm_lite.config.options.cli import OptionParser

Captured = pytest.CaptureFixture[str]


def parsers() -> dict[str, OptionParser]:
    import importlib

    found = {
        name: importlib.import_module(module).parser()
        for name, (module, _) in COMMANDS.items()
        if name != "bench"
    }
    found |= {f"bench {name}": benchmark_parser(name) for name in BENCHMARKS if name != "sweep"}
    return found | {"bench sweep serve": sweep_parser()}


PARSERS = parsers()


def outcome(words: list[str]) -> object:
    try:
        return main(words)
    except SystemExit as end:
        return end.code


@pytest.mark.parametrize("name", PARSERS)
def test_help_ends_with_examples_that_can_be_read(name: str, capsys: Captured) -> None:
    assert outcome([*name.split(), "--help"]) == 0
    text = capsys.readouterr().out
    _, _, examples = text.partition("\nExamples:\n")
    assert examples
    for line in examples.splitlines():
        words = shlex.split(line.partition(" > ")[0])
        assert words[: 1 + len(name.split())] == ["vllm-lite", *name.split()]
        given = words[1 + len(name.split()) :]
        end = given.index("--") if "--" in given else len(given)
        PARSERS[name].parse(given[:end])


@pytest.mark.parametrize("name", ["pull", "show", "rm", "run"])
def test_what_the_usage_line_requires_is_demanded(name: str, capsys: Captured) -> None:
    assert f"usage: vllm-lite {name} MODEL" in f"usage: {PARSERS[name].usage}"
    assert outcome([name]) == 2
    assert capsys.readouterr().err.endswith("the following arguments are required: MODEL\n")


@pytest.mark.parametrize(
    ("name", "required"),
    [
        ("run-batch", ["-i", "-o"]),
        ("bench sweep serve", ["--serve-cmd", "--bench-cmd"]),
    ],
)
def test_usage_lines_name_what_is_required(
    name: str, required: list[str], capsys: Captured
) -> None:
    usage = PARSERS[name].usage or ""
    assert all(word in usage.split("[options]")[0].split() for word in required)
    assert outcome(name.split()) in (1, 2)
    error = capsys.readouterr().err
    assert all(word in error for word in required)


def completed(folder: Path, *words: str) -> list[str]:
    """Bash's completions of the last word."""
    script = folder / "vllm-lite"
    line = " ".join(shlex.quote(word) for word in words)
    program = (
        f"source {script}\nCOMP_WORDS=({line})\nCOMP_CWORD={len(words) - 1}\n"
        "complete -p vllm-lite >/dev/null || exit 9\n_shtab_vllm_lite\n"
        'printf "%s\\n" "${COMPREPLY[@]}"'
    )
    done = subprocess.run(["bash", "-c", program], capture_output=True, text=True, check=True)
    return done.stdout.split()


def test_bash_completes_commands_options_and_values(tmp_path: Path, capsys: Captured) -> None:
    assert main(["--print-completion", "bash"]) == 0
    (tmp_path / "vllm-lite").write_text(capsys.readouterr().out)
    assert completed(tmp_path, "vllm-lite", "s") == ["serve", "stop", "show"]
    assert completed(tmp_path, "vllm-lite", "bench", "sweep", "s") == ["serve"]
    options = completed(tmp_path, "vllm-lite", "serve", "--max-model")
    assert options == ["--max-model-len"]
    values = completed(tmp_path, "vllm-lite", "serve", "--kv-cache-dtype", "int8")
    assert values == ["int8", "int8_per_token_head"]
    # What this build does not have is not offered.
    assert completed(tmp_path, "vllm-lite", "serve", "--enable-lor") == []


@pytest.mark.parametrize("shell", SHELLS)
def test_a_script_for_each_shell_parses(shell: str, tmp_path: Path, capsys: Captured) -> None:
    assert main([f"--print-completion={shell}"]) == 0
    text = capsys.readouterr().out
    assert all(word in text for word in ("run-batch", "max-model-len", "sweep"))
    if shutil.which(shell):
        (tmp_path / "script").write_text(text)
        subprocess.run([shell, "-n", str(tmp_path / "script")], check=True, capture_output=True)


def test_an_unknown_shell_is_answered_with_the_nearest(capsys: Captured) -> None:
    assert main(["--print-completion", "fihs"]) == 2
    assert "did you mean fish?" in capsys.readouterr().err
