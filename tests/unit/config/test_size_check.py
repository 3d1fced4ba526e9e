"""Sizes that are made up are refused before a model of such a size is built."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.checkpoints import LLAMA_GGUF, write_gguf, write_hf
from tests.models.checkpoints import make_model, save
from vllm_lite.config.engine_args import EngineArgs
from vllm_lite.errors import CheckpointError

# Bytes in float32 of what the configuration of `write_hf` describes.
HELD = 4 * 64 * (100 + 2 * (3 * 128 + 4 * 64))


def resolve(path: Path, **options: Any) -> None:
    EngineArgs(model=str(path), device="cpu", **options).create_engine_config()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("num_hidden_layers", 2**14),
        ("hidden_size", 2**31 - 4),
        ("vocab_size", 10**9),
        ("head_dim", 10**8),
        ("intermediate_size", 2**62),
    ],
)
def test_sizes_are_compared_with_the_files(tmp_path: Path, key: str, value: int) -> None:
    folder = write_hf(tmp_path, **{key: value})
    (folder / "model.safetensors").write_bytes(bytes(HELD))
    with pytest.raises(CheckpointError, match=f"weights or more, but its files hold {HELD:,}"):
        resolve(folder)
    resolve(folder, load_format="dummy")


def test_what_the_files_hold_is_not_refused(tmp_path: Path) -> None:
    folder = write_hf(tmp_path / "plain")
    (folder / "model.safetensors").write_bytes(bytes(HELD // 8))
    resolve(folder)
    resolve(save(make_model("qwen3"), tmp_path / "real"))


@pytest.mark.parametrize("count", [2**14 + 1, 131102, 2**31, 2**63])
def test_layers_are_counted_before_anything_is_listed_by_them(tmp_path: Path, count: int) -> None:
    with pytest.raises(CheckpointError, match=f"num_hidden_layers is {count} .* more than 16384"):
        resolve(write_hf(tmp_path, num_hidden_layers=count))
    if count < 2**32:
        metadata = {**LLAMA_GGUF, "llama.block_count": count}
        with pytest.raises(CheckpointError, match=f"{count} in its configuration"):
            resolve(write_gguf(tmp_path / "m.gguf", metadata))


@pytest.mark.parametrize("key", ["embedding_length", "attention.key_length"])
def test_a_gguf_file_too(tmp_path: Path, key: str) -> None:
    path = write_gguf(tmp_path / "m.gguf", {**LLAMA_GGUF, f"llama.{key}": 131102 * 64})
    with pytest.raises(CheckpointError, match=r"m\.gguf: .* but its files hold"):
        resolve(path)
