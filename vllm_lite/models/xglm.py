"""XGLM: OPT's shape with sines for positions."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import torch

from vllm_lite.config.facts import ModelFacts
from vllm_lite.errors import CheckpointError
from vllm_lite.layers.embedding import LearnedPositions
from vllm_lite.layers.weights import NamedSlot
from vllm_lite.loader.weight_rules import Rule, renamed
from vllm_lite.models.decoder import DecoderForCausalLM
from vllm_lite.models.options import BuildOptions
from vllm_lite.models.spec import DecoderSpec, gpt_spec

# Of the first token.
_FIRST_POSITION = 2
_LAYER = "model.layers.*"
_NAMES = {
    "model.layer_norm": "model.norm",
    f"{_LAYER}.self_attn_layer_norm": f"{_LAYER}.input_layernorm",
    f"{_LAYER}.final_layer_norm": f"{_LAYER}.post_attention_layernorm",
    f"{_LAYER}.self_attn.out_proj": f"{_LAYER}.self_attn.o_proj",
    f"{_LAYER}.fc1": f"{_LAYER}.mlp.up_proj",
    f"{_LAYER}.fc2": f"{_LAYER}.mlp.down_proj",
}


class XGLMForCausalLM(DecoderForCausalLM):
    """Lin et al., 2021."""

    rules = (*renamed(_NAMES), Rule("model.embed_positions"))

    def __init__(self, facts: ModelFacts, options: BuildOptions) -> None:
        super().__init__(facts, options)
        positions = SinusoidalPositions(options.max_model_len, facts.hidden_size, options.dtype)
        self.model.embed_positions = positions
        self.model.entering.append(positions.add_to)

    @staticmethod
    def spec(facts: ModelFacts) -> DecoderSpec:
        scale = facts.hidden_size**0.5 if facts.hf_config["scale_embedding"] else 1.0
        return replace(gpt_spec(facts, "layer_norm_eps"), embedding_scale=scale)


class SinusoidalPositions(LearnedPositions):
    """Sines, then cosines, of falling frequencies (Vaswani et al., 2017)."""

    def __init__(self, num_positions: int, hidden_size: int, dtype: torch.dtype) -> None:
        super().__init__(num_positions, hidden_size, dtype)
        if hidden_size < 4:
            raise CheckpointError(f"a hidden size of {hidden_size} has no room for positions")

    def weight_slots(self) -> Iterator[NamedSlot]:
        return iter(())

    def process_weights_after_loading(self) -> None:
        count, size = self._rows.shape
        half, device = size // 2, self._rows.device
        steps = torch.arange(half, dtype=torch.float32, device=device)
        frequencies = torch.exp(steps * -(math.log(10000) / (half - 1)))
        positions = torch.arange(count, dtype=torch.float32, device=device) + _FIRST_POSITION
        angles = positions[:, None] * frequencies
        self._rows.zero_()
        self._rows[:, :half] = angles.sin()
        self._rows[:, half : 2 * half] = angles.cos()
