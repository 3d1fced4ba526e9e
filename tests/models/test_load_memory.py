"""Loads take the memory that their weights do, and little more, in every format read here itself.

The bound of benchmarks/load_time.py on a file that is smaller; each load has a process of its own.
"""

from __future__ import annotations

import importlib
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.forked import SERVER

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def load_time() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(BENCHMARKS)
        module = importlib.import_module("load_time")
        patch.setitem(module.SIZES, "vocab_size", 6144)
        yield module


@pytest.fixture(scope="module")
def plain(load_time: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plain")
    load_time.write_checkpoint(folder, 0.125)
    return folder


@pytest.mark.parametrize(
    "name", ["lazy", "eager", "prefetch", "sharded_state", "gguf", "mistral", "pt"]
)
def test_a_load_holds_its_weights_and_64_mb_at_most(name: str, load_time: Any, plain: Path) -> None:
    folder = load_time.write_form(name, plain) if name in load_time.FORMS else plain
    num_bytes = sum(path.stat().st_size for path in load_time.weight_files(folder, name))
    with ProcessPoolExecutor(1, SERVER) as pool:
        load = pool.submit(load_time.load_once, folder, name).result(300)
    assert num_bytes > 128 << 20
    assert load.memory <= load_time.MEMORY_GOAL * num_bytes + load_time.MEMORY_MORE
