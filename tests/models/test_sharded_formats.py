"""Sharded states of quantised checkpoints, which stay as they are stored."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.models.quantized_checkpoints import write_pair
from tests.models.runner import load
from tests.models.test_aqlm import FORMS as AQLM
from tests.models.test_aqlm import written
from tests.models.test_integer_checkpoints import FORMATS
from tests.models.test_quantized_checkpoints import SIZES, logits
from tests.models.test_stored_codes import CASES
from vllm_lite.config.engine_args import EngineArgs
from vllm_lite.loader.load import save_sharded_state
from vllm_lite.loader.sharded_state import PATTERN

NAMES = (
    "gptq act-order",
    "bitblas",
    "hqq 4",
    "bitsandbytes nf4 nested 128",
    "fp8 static",
    "MXFP4",
    "NVFP4",
)


def saved(checkpoint: Path, directory: Path) -> str:
    """Write the sharded state of `checkpoint`; why that failed, or ""."""
    directory.mkdir()
    (directory / "config.json").write_bytes((checkpoint / "config.json").read_bytes())
    args = EngineArgs(
        model=str(checkpoint), dtype="float32", device="cpu", skip_tokenizer_init=True
    )
    return save_sharded_state(args.create_engine_config(), str(directory), PATTERN, 20_000)


@pytest.mark.parametrize("name", NAMES)
def test_a_checkpoint_s_format_is_kept(name: str, tmp_path: Path) -> None:
    settings, quantise = (FORMATS | CASES)[name][:2]
    sizes = FORMATS[name][2] if name in FORMATS else SIZES
    packed, _ = write_pair(tmp_path, settings, quantise, **sizes)
    assert saved(packed, tmp_path / "sharded") == ""
    kept = load(tmp_path / "sharded", load_format="sharded_state")
    assert torch.equal(logits(kept), logits(load(packed)))


def test_books_are_not_of_one_rank(tmp_path: Path) -> None:
    packed, _ = write_pair(tmp_path, AQLM["2x8"], written(2), **SIZES)
    refused = saved(packed, tmp_path / "sharded")
    assert "AQLM" in refused and "\n" not in refused
