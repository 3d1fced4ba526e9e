"""Weights that are not finite, or far from it, end the start with one line."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.models.checkpoints import make_model, save
from vllm_lite.config.engine_args import EngineArgs
from vllm_lite.engine.core.engine_core import EngineCore
from vllm_lite.errors import CheckpointError
from vllm_lite.executor.uniproc import UniprocExecutor
from vllm_lite.loader import load

PLACES = [
    "model.embed_tokens.weight",
    "model.layers.0.self_attn.k_proj.weight",
    "model.layers.1.mlp.gate_proj.weight",
    "model.layers.1.post_attention_layernorm.weight",
    "lm_head.weight",
]


def start(folder: Path, name: str | None = None, value: float = 0.0, **options: Any) -> EngineCore:
    model = make_model("llama", tie_word_embeddings=False)
    if name is not None:
        with torch.no_grad():
            model.get_parameter(name).view(-1)[37] = value
    args = EngineArgs(
        model=str(save(model, folder)),
        device="cpu",
        skip_tokenizer_init=True,
        kv_cache_memory_bytes=1 << 24,
        **options,
    )
    return EngineCore(args.create_engine_config(), UniprocExecutor)


@pytest.mark.parametrize("name", PLACES)
@pytest.mark.parametrize("value", [math.nan, math.inf, -3e38])
def test_one_bad_weight_is_one_line(tmp_path: Path, name: str, value: float) -> None:
    with pytest.raises(CheckpointError, match="fetch the weights again") as caught:
        start(tmp_path, name, value, dtype="float32")
    assert "\n" not in str(caught.value) and str(tmp_path) in str(caught.value)


@pytest.mark.parametrize("name", PLACES[1:])
def test_a_value_that_no_file_holds_as_a_float_shows_in_the_first_steps(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load, "_check_magnitude", lambda *_: None)
    with pytest.raises(CheckpointError, match=r"logits that are not finite.* float32"):
        start(tmp_path, name, math.nan, dtype="float32")


@pytest.mark.parametrize("limits", [{}, {"max_num_seqs": 1, "num_gpu_blocks_override": 9}])
def test_sound_weights_start_and_leave_nothing(tmp_path: Path, limits: dict[str, Any]) -> None:
    core = start(tmp_path, **limits)
    assert not core.has_work()
    core.shutdown()
