"""nanochat: norms without weights, one of them of the embedding; heads are normalised once rotated.

Its rotation turns the other way. That is the usual one of heads whose halves are exchanged, which
the weights of queries and keys can be.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from vllm_lite.config.facts import ModelFacts
from vllm_lite.loader.weight_rules import Part, Rule, renamed
from vllm_lite.models.decoder import DecoderForCausalLM
from vllm_lite.models.nemotron import without_gates
from vllm_lite.models.spec import DecoderSpec, biased_spec, positive, with_layers


class NanoChatForCausalLM(DecoderForCausalLM):
    """Karpathy, 2025."""

    @staticmethod
    def spec(facts: ModelFacts) -> DecoderSpec:
        plain = biased_spec(facts)
        norm = replace(plain.norm, has_weight=False)
        is_capped = facts.hf_config.get("final_logit_softcapping") is not None
        cap = positive(facts, "final_logit_softcapping", 15) if is_capped else 0.0
        spec = replace(plain, norm=norm, has_embedding_norm=True, logit_cap=cap)
        attention = {"qk_norm": norm, "is_normed_after_rotation": True}
        return without_gates(facts, with_layers(spec, attention))

    @staticmethod
    def weight_rules(facts: ModelFacts) -> Sequence[Rule]:
        layer = "model.layers.*"
        rules = renamed(
            {
                f"{layer}.mlp.fc1": f"{layer}.mlp.up_proj",
                f"{layer}.mlp.fc2": f"{layer}.mlp.down_proj",
            }
        )
        for name, count in (("q_proj", facts.num_heads), ("k_proj", facts.num_kv_heads)):
            total = count * facts.head_size
            order = torch.arange(total).view(count, 2, -1).flip(1).reshape(-1)
            path = f"{layer}.self_attn.{name}"
            rules.append(Rule(path, (Part(path, order, total),)))
        return rules
