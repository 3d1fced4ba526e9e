"""The tool that adds tuned tiles: what it does without a GPU, and how it writes a table."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest
import torch

pytest.importorskip("triton")

ROOT = Path(__file__).parents[2]
TABLES = ROOT / "vllm_lite/kernels/gpu/tuned"


@pytest.fixture
def tune() -> Iterator[ModuleType]:
    before = sys.path.copy()
    sys.path.insert(0, str(ROOT / "benchmarks"))
    yield import_module("tune")
    sys.path[:] = before


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    environment |= {"TRITON_DEFAULT_FP_FUSION": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, ROOT / "benchmarks/tune.py", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True)


def test_dry_run_compiles_candidates_and_writes_nothing() -> None:
    before = {path: path.read_text() for path in TABLES.iterdir()}
    done = run("int4_groups", "--rows", "16", "--target", "89", "--most", "1")
    assert done.returncode == 0, done.stderr[-2000:]
    line, end = done.stdout.splitlines()
    assert line.startswith("sm_89") and "registers" in line and "block_m=16" in line
    assert end == "nothing was measured"
    assert {path: path.read_text() for path in TABLES.iterdir()} == before


def test_unmeasured_entries_are_not_written(
    tune: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for arguments, complaint in (
        (["int8", "--write"], "needs a GPU"),
        (["int4_groups", "--rows", "5000"], "give fewer"),
        (["int4_groups", "--rows", "4"], "give more"),
    ):
        monkeypatch.setattr(sys, "argv", ["tune.py", *arguments])
        with pytest.raises(SystemExit, match=complaint):
            tune.main()


def test_an_entry_replaces_one_for_the_same_work(tune: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "products.json"
    path.write_text((TABLES / "products.json").read_text())
    before = json.loads(path.read_text())
    args = tune.parse(["int8", "--rows", "16"])
    tile = tune.ProductTile(16, 32, 64, 4, 2)
    tune.write(path, tune.entry_of(args, tile, 80, "measured on a GPU"))
    tune.write(path, tune.entry_of(args, tile, 100, "measured on a GPU"))
    after = json.loads(path.read_text())
    assert len(after) == len(before) + 1
    assert [e["target"] for e in after if e["origin"] != "compiled"] == [80, 100]
    changed = next(e for e in after if e["origin"] != "compiled")
    rest = [e for e in after if e["origin"] == "compiled"]
    assert changed["tile"]["block_n"] == 32 and all(e in before for e in rest)


def test_no_candidate_has_more_rows_than_the_work(tune: ModuleType) -> None:
    for kind in ("int8", "int4_groups", "experts"):
        for rows, most in ((1, 16), (17, 32), (500, 128)):
            tiles = list(tune.candidates(tune.parse([kind, "--rows", str(rows)])))
            assert max(tile.block_m for tile in tiles) == most
            assert len(set(tiles)) == len(tiles)
