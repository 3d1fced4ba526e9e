"""The benchmarks of weight formats: their forms can be made, and none is missing."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig

from vllm_lite.config.checkpoints.checkpoint import LOADABLE_GGML_TYPES
from vllm_lite.config.quantized.registry import read_scheme

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"


def script(name: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module(name)


def test_every_form_has_products(monkeypatch: pytest.MonkeyPatch) -> None:
    forms = script("format_cost", monkeypatch).forms()
    names = [form.name for form in forms]
    assert len(set(names)) == len(names)
    ggufs = {form.name.removeprefix("GGUF ") for form in forms if form.storage == "GGUF"}
    assert ggufs == set(LOADABLE_GGML_TYPES) - {"F32", "F16", "BF16"}
    for form in forms:
        kernel = form.make(32, 512)
        assert kernel(torch.randn(2, 512, dtype=torch.bfloat16)).isfinite().all(), form.name
        assert kernel.stored, form.name


def test_every_checkpoint_of_a_step_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = script("format_steps", monkeypatch)
    for name, settings in steps.CHECKPOINTS.items():
        assert read_scheme(name, {"quantization_config": settings}), name


def test_a_step_reads_its_layers_and_its_head(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """And no embedding, of which a token takes one row."""
    steps = script("format_steps", monkeypatch)
    small = script("kernels.case", monkeypatch).Shape(64, 128, 4, 2, 16, 96)
    monkeypatch.setitem(steps.SHAPES, "1.1b", small)
    AutoConfig.for_model(**steps.shape(3)).save_pretrained(tmp_path)
    of_layer = 64 * (64 + 2 * 32 + 64) + 3 * 64 * 128
    assert steps.stored(tmp_path, 3, {}) == ("bfloat16", 2 * (3 * of_layer + 64 * 96))
    kind, num_bytes = steps.stored(tmp_path, 3, {"quantization": "q8_0"})
    assert (kind, num_bytes * 32) == ("Q8_0", 34 * (3 * of_layer + 64 * 96))
