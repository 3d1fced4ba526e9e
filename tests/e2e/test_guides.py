"""Every block of README and of the guides is run as it stands, from top to bottom of a page.

Clients talk to a demo server, or to one that embeds; a `serve` of a block starts, gets ready and is
stopped; the hub is a stand-in on the loopback, whose model is tiny. What a block prints is compared
but for numbers.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

from tests.e2e.server_process import ServerProcess, free_port
from tests.models.byte_model import save_byte_model
from tests.unit.cli.fake_hub import FakeHub, serving
from vllm_lite.config.demo import fetch_demo

ROOT = Path(__file__).resolve().parents[2]
MODEL = "Qwen/Qwen3-0.6B"
# What is not run, and why.
EXCEPTIONS = {
    r"^docker ": "there is no daemon; test_package.py follows the Dockerfile's steps",
    r"--device cuda|benchmarks/gpu": "there is no GPU",
}
# Words of a machine; a line is compared up to the first.
_OF_A_MACHINE = re.compile(r"\.\.\.|, bfloat16|\bavx|\bkernels |Paris|[\w./]*\d{3,}\b")


class Block(NamedTuple):
    page: Path
    line: int
    language: str
    text: str

    @property
    def name(self) -> str:
        return f"{self.page.name}:{self.line}"


def pages() -> list[Path]:
    """README, and what the site calls a quick start and guides."""
    sections = yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]
    named = {key: value for section in sections for key, value in section.items()}
    guides = [name for guide in named["Guides"] for name in guide.values()]
    return [ROOT / "README.md", *(ROOT / "docs" / name for name in [named["Quick start"], *guides])]


def blocks() -> Iterator[Block]:
    for page in pages():
        text = page.read_text(encoding="utf-8")
        for found in re.finditer(r"^```(.*)\n((?:.*\n)*?)```$", text, re.M):
            line = text[: found.start()].count("\n") + 1
            yield Block(page, line, found[1], found[2])


def is_left_out(block: Block) -> bool:
    return any(re.search(pattern, block.text, re.M) for pattern in EXCEPTIONS)


ALL = list(blocks())
RUN = [block for block in ALL if not is_left_out(block)]


def commands(text: str) -> Iterator[tuple[str, list[str]]]:
    """Each command of a transcript, and the lines that it printed."""
    command, printed = "", list[str]()
    for line in text.splitlines():
        end = re.search(r"<<'(\w+)'", command)
        is_open = command.count("'") % 2 or command.endswith(("|", "\\"))
        if line.startswith("$ "):
            if command:
                yield command, printed
            command, printed = line.removeprefix("$ "), []
        elif is_open or (end and f"\n{end[1]}" not in command):
            command += "\n" + line
        else:
            printed.append(line)
    yield command, printed


# `vllm-lite` of the blocks: to the server at hand, and `serve` until it is ready.
STAND_IN = """\
import os, signal, subprocess, sys
words = sys.argv[1:]
command = [sys.executable, "-m", "vllm_lite", *words]
if words[:1] in (["chat"], ["complete"]):
    command += ["--url", os.environ["SERVER"] + "/v1"]
if words[:2] == ["bench", "serve"]:
    command += ["--base-url", os.environ["SERVER"]]
if words[:1] != ["serve"] or any(word.startswith("--help") for word in words):
    os.execv(sys.executable, command)
command += ["--host", "127.0.0.1", "--port", os.environ["FREE_PORT"]]
server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
for line in server.stdout:
    print(line, end="", flush=True)
    if "Application startup complete" in line:
        server.send_signal(signal.SIGTERM)
sys.exit(server.wait())
"""


class Place:
    """A folder for each page, and the environment of its commands."""

    def __init__(self, root: Path, servers: list[ServerProcess], hub: FakeHub, port: int) -> None:
        """The second of the servers embeds."""
        self._root, (server, self._embedding) = root, servers
        self._server = server
        bin = root / "bin"
        bin.mkdir()
        programs = {
            "vllm-lite": f"#!{sys.executable}\n{STAND_IN}",
            "make": f'#!/bin/sh\nexec {shutil.which("make")} --dry-run -C {ROOT} "$@"\n',
        }
        for name, text in programs.items():
            (bin / name).write_text(text)
            (bin / name).chmod(0o755)
        (root / "cache" / "demo").mkdir(parents=True)
        shutil.copy(fetch_demo(), root / "cache" / "demo")
        self._environment = {
            **os.environ,
            "PATH": f"{bin}:{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "SERVER": server.url,
            "FREE_PORT": str(port),
            "VLLM_CACHE_ROOT": str(root / "cache"),
            "HF_ENDPOINT": hub.url,
            "HF_HUB_CACHE": str(root / "hub"),
            "HF_HUB_OFFLINE": "0",
        }

    def run(self, block: Block, text: str, program: list[str]) -> str:
        """The output of `text` on either stream; it must succeed."""
        folder = self._root / block.page.stem
        server = self._embedding if block.page.stem == "pooling" else self._server
        folder.mkdir(exist_ok=True)
        done = subprocess.run(
            [*program, text.replace("http://localhost:8000", server.url)],
            cwd=folder,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, f"{text}\n{done.stdout}"
        return done.stdout


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    model = save_byte_model(tmp_path_factory.mktemp("model"))
    files = {path.name: path.read_bytes() for path in model.iterdir()}
    config = {**json.loads(files["config.json"]), "max_position_embeddings": 40960}
    files["config.json"] = json.dumps(config).encode()
    greedy = ("--override-generation-config", '{"temperature": 0}')
    sizes = ("--max-model-len", "2048", "--num-gpu-blocks-override", "2000")
    stored = ("--batch-storage-dir", str(tmp_path_factory.mktemp("stored")))
    with (
        ServerProcess(*greedy, *sizes, *stored) as server,
        ServerProcess("--convert", "embed", *sizes) as embedding,
        serving(FakeHub(files, MODEL)) as hub,
    ):
        yield Place(tmp_path_factory.mktemp("guides"), [server, embedding], hub, free_port())


SHELL = ["bash", "-euo", "pipefail", "-c"]


@pytest.mark.slow
@pytest.mark.parametrize("block", RUN, ids=[block.name for block in RUN])
def test_a_block_runs_as_it_stands(block: Block, place: Place) -> None:
    if block.language == "python":
        place.run(block, block.text, [sys.executable, "-c"])
    elif block.language == "sh":
        printed = place.run(block, block.text, SHELL)
        assert '{"error"' not in printed and "Traceback" not in printed, printed
    else:
        assert block.language == "console", "say what the block is: sh, console or python"
        for command, expected in commands(block.text):
            printed = place.run(block, command, SHELL)
            for line in expected:
                assert re.search(pattern_of(line), printed), f"{line}\nnot in\n{printed}"


def pattern_of(line: str) -> str:
    """The form of a printed line on any machine, at any time."""
    said = _OF_A_MACHINE.split(line, maxsplit=1)[0]
    # A log's line has the time after its level.
    parts = [re.escape(part) for part in re.split(r"\d[\d.,:]*", said)]
    return r"[\d.,:]+".join(parts).replace(r"INFO\ \[", r"INFO\ [\d: -]+\[")


def test_what_is_not_run_is_little() -> None:
    assert all(any(re.search(one, block.text, re.M) for block in ALL) for one in EXCEPTIONS)
    left_out = [block.name for block in ALL if is_left_out(block)]
    assert {name.split(":")[0] for name in left_out} <= {"docker.md", "gpu.md"}
    assert len(RUN) > 5 * len(left_out)
