"""Everything that documents name exists: options, commands, variables, modules, files and links.

That their blocks run is tests/e2e/test_guides.py's.
"""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from vllm_lite import envs
from vllm_lite.cli.bench import BENCHMARKS, benchmark_parser, sweep_parser
from vllm_lite.cli.main import COMMANDS
from vllm_lite.config.options.argv import spellings_of

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
PACKAGE = ROOT / "vllm_lite"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]
# Pages about the code, whose readers look up what they name.
OF_CODE = [ROOT / "CONTRIBUTING.md", DOCS / "architecture.md", *sorted(DOCS.glob("design/*.md"))]
# Options of docker, pip, mypy, llama.cpp, and of scripts in benchmarks and tests.
OF_OTHERS = """
    --aborts --build-arg --budget-s --check --cpus --cpuset-cpus --demo --dry-run --editable
    --engines --entrypoint --examples --folder --from --gpus --grammar --headers --index-url
    --memory --no-build-isolation --only --output --part --requests --rm --rounds --sections
    --soak-minutes --strict --target --write
"""
NAMES = [page.name for page in PAGES]
# cli.md is generated from the options, and explains with made-up ones.
WRITTEN = [page for page in PAGES if page.name != "cli.md"]


@cache
def options() -> set[str]:
    """Every spelling of every option, available or not."""
    found = {"--help", "--version", "--config", "--print-completion"}
    modules = (importlib.import_module(module) for module, _ in COMMANDS.values())
    parsers = [module.parser() for module in modules if hasattr(module, "parser")]
    parsers += [benchmark_parser(name) for name in BENCHMARKS if name != "sweep"]
    parsers += [sweep_parser()]
    for parser in parsers:
        for spelling in spellings_of(parser.entries):
            found |= {spelling, f"--no-{spelling.removeprefix('--')}"}
    return found


def codes(page: Path) -> Iterator[str]:
    """Code blocks, and words between backquotes."""
    text = page.read_text(encoding="utf-8")
    yield from (found[1] for found in re.finditer(r"^```\w*\n(.*?)^```$", text, re.M | re.S))
    text = re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)
    yield from (found[2] for found in re.finditer(r"(`+)(.+?)\1", text, re.S))


@pytest.mark.parametrize("page", WRITTEN, ids=[page.name for page in WRITTEN])
def test_options_commands_and_variables_that_are_named_exist(page: Path) -> None:
    known = {*envs.VARIABLES, *envs.IDLE, *envs.GRANTED}
    for code in codes(page):
        for option, star in re.findall(r"(?<![\w-])(--[a-z0-9][\w-]*)(\*?)", code):
            alike = [one for one in options() if one.startswith(option)] if star else []
            assert alike or option in options() or option in OF_OTHERS.split(), (
                f"{option} in {code!r}"
            )
        for command in re.findall(r"(?:^|\$ |`)vllm-lite ([a-z][\w-]*)", code, re.M):
            assert command in COMMANDS, code
        for variable in re.findall(r"\bVLLM_[A-Z_]+[A-Z]\b(?!\.|=\w*\*)", code):
            assert variable in known or "cmake.define" in code, f"{variable} in {code!r}"


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_files_that_are_named_exist(page: Path) -> None:
    folders = "benchmarks|csrc|docs|examples|tests|vllm_lite"
    for code in codes(page):
        for name in re.findall(rf"(?<![\w/.:-])(?:{folders})/[\w/.-]+", code):
            path = ROOT / name.rstrip(".")
            is_there = path.exists() or any(path.parent.glob(f"{path.name}.*"))
            assert is_there or "<" in code or "*" in code, name


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_modules_that_are_named_exist(page: Path) -> None:
    packages = "|".join(path.name for path in PACKAGE.iterdir() if path.is_dir())
    for code in codes(page):
        for name in re.findall(rf"(?<![\w/.<-])(?:{packages})/[\w/]+(?:\.[a-z]+)?(?!\w|/|<)", code):
            path = PACKAGE / name.rstrip("/")
            assert path.exists() or path.with_suffix(".py").exists(), name


@pytest.mark.parametrize("page", OF_CODE, ids=[page.name for page in OF_CODE])
def test_classes_that_are_named_exist(page: Path) -> None:
    files = [*PACKAGE.rglob("*.py"), *(ROOT / "csrc").rglob("*.h")]
    sources = "\n".join(path.read_text("utf-8") for path in files)
    for code in codes(page):
        for name in re.findall(r"^[A-Z][a-z]\w*[A-Z]\w*$|^[A-Z][a-z]\w+(?=[.(])", code):
            assert re.search(rf"^((class|struct|using) {name}\b|{name} = )", sources, re.M), name


def test_the_afternoon_path_is_an_afternoon() -> None:
    text = (DOCS / "architecture.md").read_text("utf-8")
    named = re.findall(r"^\| \d+ \| `([\w/]+\.py)` \|", text, re.M)
    lengths = {name: len((PACKAGE / name).read_text("utf-8").splitlines()) for name in named}
    assert 20 <= len(lengths) == len(named) <= 30
    assert sum(lengths.values()) <= 5000, lengths


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        path = page.parent / name if name else page
        assert path.exists(), target
        if anchor:
            titles = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), re.M)
            slugs = [re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in titles]
            assert anchor in slugs, target


def test_the_site_is_built_and_no_link_of_it_is_broken(tmp_path: Path) -> None:
    pytest.importorskip("material", reason="mkdocs-material is not installed")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=quiet, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "index.html").is_file() and (tmp_path / "cli" / "index.html").is_file()
