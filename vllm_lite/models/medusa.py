"""Medusa (Cai et al., 2024): a head for each further token, all of one hidden state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from vllm_lite.config.facts import ModelFacts
from vllm_lite.core.kv_spec import KVCacheSpec
from vllm_lite.kernels.dispatch import ops
from vllm_lite.layers.attention import LayerCache
from vllm_lite.layers.embedding import ParallelLMHead
from vllm_lite.layers.linear import ParallelLinear
from vllm_lite.loader.weight_rules import AnyRule
from vllm_lite.models.draft_head import STORED, TOKEN_IDS, TokenIds
from vllm_lite.models.options import BuildOptions


class Block(nn.Module):
    """Residual layers of one head."""

    def __init__(self, options: BuildOptions, size: int, count: int, *, bias: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            options.at(f"layers.{i}").whole_linear(size, size, bias=bias) for i in range(count)
        )
        self._ops = ops()

    def forward(self, hidden: Tensor) -> Tensor:
        """[R, N] -> [R, N]."""
        layer: ParallelLinear
        for layer in self.layers:  # type: ignore[assignment]
            hidden = hidden + self._ops.activation(layer.kernel(hidden), "silu")
        return hidden


class MedusaModel(nn.Module):
    """Residual blocks, and output heads of their own or one for all."""

    def __init__(self, facts: ModelFacts, options: BuildOptions) -> None:
        super().__init__()
        hf, size = facts.hf_config, facts.hidden_size
        count, bias = int(hf["num_heads"]), bool(hf.get("medusa_fc_bias"))
        self.blocks = nn.ModuleList(
            Block(options.at(f"blocks.{i}"), size, int(hf["num_hidden_layers"]), bias=bias)
            for i in range(count)
        )
        has_one = bool(hf.get("original_lm_head"))
        num_tokens = int(hf.get("truncated_vocab_size") or facts.vocab_size)
        self.lm_heads = nn.ModuleList(
            ParallelLMHead(options.at(f"lm_heads.{i}").linear_method, num_tokens, size)
            for i in range(1 if has_one else count)
        )
        self._has_one = has_one
        if TOKEN_IDS in (hf.get(STORED) or ()):
            self.token_ids = TokenIds(num_tokens)

    @staticmethod
    def marks(facts: ModelFacts) -> Mapping[str, str]:
        """Beginnings of the tensors' names to those of the names here; others are passed over."""
        names = {name: name for name in ("blocks.", "lm_heads.")}
        names |= {"lm_head.": "lm_heads.0.", "token_map": TOKEN_IDS}
        return names | {f"medusa_heads.{old}": new for old, new in names.items()}

    @staticmethod
    def weight_rules(facts: ModelFacts) -> Sequence[AnyRule]:
        """None: names are as `marks` make them."""
        return ()

    def share(self, target: nn.Module) -> None:
        """Take nothing of `target`: the heads are its own."""

    @property
    def most(self) -> int:
        """Tokens that it drafts."""
        return len(self.blocks)

    def propose(self, hidden: Tensor, count: int) -> Tensor:
        """The target's last hidden states [R, N] -> `count` tokens behind the next, [R, count]."""
        drafts = []
        for i, block in enumerate(self.blocks[:count]):
            head: Any = self.lm_heads[0 if self._has_one else i]
            drafts.append(head.greedy_tokens(block.forward(hidden))[0])
        tokens = torch.stack(drafts, 1)
        return self.token_ids.numbers[tokens] if hasattr(self, "token_ids") else tokens

    def kv_cache_spec(self) -> KVCacheSpec:
        return KVCacheSpec(())

    def bind_kv_cache(self, caches: Sequence[LayerCache]) -> None:
        """Do nothing."""
