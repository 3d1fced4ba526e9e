"""The documents hold what they promise: links lead somewhere, and commands are ones there are."""

from __future__ import annotations

import importlib
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from vllm_lite.cli.main import COMMANDS

ROOT = Path(__file__).resolve().parents[1]
PAGES = [
    ROOT / "README.md",
    *(ROOT / "docs" / f"{n}.md" for n in ("index", "migrating", "monitoring")),
]
_BLOCK = re.compile(r"^```(?:sh|bash)?\n(.*?)^```$", re.DOTALL | re.MULTILINE)
# Each has parsers of its own for its parts, which its tests read.
_OTHERS = ("bench",)


def commands() -> list[str]:
    """What stands behind `vllm-lite` on a line of a block, as its user types it."""
    lines = [
        line
        for page in PAGES
        for block in _BLOCK.findall(page.read_text())
        for line in block.splitlines()
    ]
    found = [
        line.removeprefix("$ ").removeprefix("vllm-lite ")
        for line in lines
        if re.match(r"(\$ )?vllm-lite ", line)
    ]
    return [one for one in dict.fromkeys(found) if one.split()[0] not in _OTHERS]


@pytest.mark.parametrize("command", commands())
def test_every_command_of_the_guides_is_one_that_there_is(command: str) -> None:
    name, *words = shlex.split(command)
    words = words[: words.index("--")] if "--" in words else words
    module = importlib.import_module(COMMANDS[name][0])
    if hasattr(module, "parser"):
        module.parser().parse(words)
    else:
        assert words == []


def test_the_site_is_built_and_no_link_of_it_is_broken(tmp_path: Path) -> None:
    pytest.importorskip("material", reason="mkdocs-material is not installed")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=quiet, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "index.html").is_file() and (tmp_path / "cli" / "index.html").is_file()
