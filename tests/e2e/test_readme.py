"""README's own examples, run as they stand there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.server_process import ServerProcess

README = (Path(__file__).resolve().parent.parent.parent / "README.md").read_text(encoding="utf-8")


def example(word: str) -> tuple[str, str]:
    """The command of the one block that holds `word` in a command, and what it printed."""
    blocks = re.findall(r"^```\n\$ (.*?)\n```$", README, re.DOTALL | re.MULTILINE)
    (block,) = [block for block in blocks if word in block]
    # A command goes on while a quote or a pipe is open; what follows is what it prints.
    lines = block.splitlines()
    end = 1
    while "\n".join(lines[:end]).count("'") % 2 or lines[end - 1].endswith(("|", "\\")):
        end += 1
    return "\n".join(lines[:end]), "\n".join(lines[end:])


@pytest.mark.parametrize("word", ["get_weather"])
def test_an_example_prints_what_readme_says(demo_server: ServerProcess, word: str) -> None:
    command, printed = example(word)
    command = command.replace("http://localhost:8000", demo_server.url)
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == printed, done.stderr


@pytest.mark.parametrize("word", ["chat -q", "complete -q"])
def test_a_command_of_a_client_runs_as_readme_says(demo_server: ServerProcess, word: str) -> None:
    block = next(block for block in README.split("```") if f"$ vllm-lite {word}" in block)
    line = next(line for line in block.splitlines() if line.startswith(f"$ vllm-lite {word}"))
    command = line.removeprefix("$ vllm-lite ")
    name, rest = command.split(" ", 1)
    command = f"{sys.executable} -m vllm_lite {name} --url {demo_server.url}/v1 {rest}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    first, *reply = done.stdout.splitlines()
    assert first == "Using model: demo" and any(reply)
    assert ("TTFT: " in done.stdout) is ("--stats" in command)
