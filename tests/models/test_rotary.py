"""Rotary frequencies are transformers' own, for each way to stretch them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from vllm_lite.errors import CheckpointError
from vllm_lite.layers.rotary import RotaryEmbedding, RotarySettings, compute_frequencies

CASES: dict[str, dict[str, Any]] = {
    "linear": {"rope_type": "linear", "factor": 4.0},
    "linear-partial": {"rope_type": "linear", "factor": 1.0, "partial_rotary_factor": 0.5},
    "llama3": {
        "rope_type": "llama3",
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096},
    "yarn-own-length": {"rope_type": "yarn", "factor": 2.0},
    "yarn-no-factor": {
        "rope_type": "yarn",
        "factor": None,
        "original_max_position_embeddings": 4096,
    },
    "yarn-mscale": {"rope_type": "yarn", "factor": 40.0, "mscale": 1.0, "mscale_all_dim": 0.8},
    "yarn-attention-factor": {"rope_type": "yarn", "factor": 8.0, "attention_factor": 0.9},
    "yarn-betas": {"rope_type": "yarn", "factor": 8.0, "beta_fast": 20, "beta_slow": 2},
    "yarn-untruncated": {"rope_type": "yarn", "factor": 8.0, "truncate": False},
    "yarn-partial": {"rope_type": "yarn", "factor": 8.0, "partial_rotary_factor": 0.25},
}


def settings(parameters: dict[str, Any], head_size: int = 64) -> RotarySettings:
    return RotarySettings(
        head_size=head_size,
        max_position_embeddings=16384,
        parameters={"rope_theta": 500000.0, **parameters},
    )


@pytest.mark.parametrize("case", CASES)
def test_frequencies_equal_transformers(case: str) -> None:
    parameters = {"rope_theta": 500000.0, **CASES[case]}
    config = LlamaConfig(head_dim=64, max_position_embeddings=16384, rope_parameters=parameters)
    want, want_magnitude = ROPE_INIT_FUNCTIONS[parameters["rope_type"]](config)
    got, magnitude = compute_frequencies(settings(CASES[case]), torch.arange(4.0))
    torch.testing.assert_close(got, want, rtol=1e-6, atol=0)
    assert magnitude == pytest.approx(want_magnitude)


@pytest.mark.parametrize("length", [16384, 20000, 65536])
def test_dynamic_frequencies_are_those_of_a_sequence_that_ends_there(length: int) -> None:
    parameters = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}
    config = LlamaConfig(head_dim=64, max_position_embeddings=16384, rope_parameters=parameters)
    want, _ = ROPE_INIT_FUNCTIONS["dynamic"](config, seq_len=length)
    got, _ = compute_frequencies(settings(parameters), torch.tensor([length - 1.0]))
    torch.testing.assert_close(got[0], want, rtol=1e-5, atol=0)


def test_only_the_first_part_of_a_head_is_rotated() -> None:
    rotary = RotaryEmbedding(settings({"partial_rotary_factor": 0.5}, head_size=16), 32)
    rotary.process_weights_after_loading()
    query, key = torch.randn(3, 2, 16), torch.randn(3, 1, 16)
    before = query.clone(), key.clone()
    rotary(torch.tensor([0, 5, 31]), query, key)
    for now, then in zip((query, key), before, strict=True):
        assert torch.equal(now[..., 8:], then[..., 8:])
        assert torch.equal(now[0], then[0])
        assert not torch.allclose(now[1:, :, :8], then[1:, :, :8])
        # A rotation keeps lengths.
        torch.testing.assert_close(now.norm(dim=-1), then.norm(dim=-1))


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"rope_type": "linear"}, "'factor'"),
        ({"rope_type": "llama3", "factor": 8.0}, "'low_freq_factor'"),
        ({"rope_type": "other"}, "other"),
        ({"rope_type": "default", "partial_rotary_factor": 0.01}, "rotary size"),
        ({"rope_type": "default", "partial_rotary_factor": 255}, "between 0 and 1"),
        ({"rope_type": "default", "partial_rotary_factor": float("nan")}, "between 0 and 1"),
    ],
)
def test_uncomputable_config_is_refused(parameters: dict[str, Any], words: str) -> None:
    with pytest.raises(CheckpointError, match=words):
        compute_frequencies(settings(parameters), torch.arange(2.0))
