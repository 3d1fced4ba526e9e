"""The decoder-only transformer that a DecoderSpec describes.

Modules bear the names of Hugging Face's checkpoints. Blocks call each other's `forward` or
`kernel` directly: with a few rows, hook handling would cost as much as the arithmetic.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vllm_lite.config.facts import ModelFacts
from vllm_lite.core.kv_spec import CacheFormat, KVCacheSpec
from vllm_lite.distributed.groups import head_shards
from vllm_lite.layers.attention import Attention, attention
from vllm_lite.layers.embedding import ParallelLMHead, VocabParallelEmbedding
from vllm_lite.layers.linear import QKVParallelLinear, RowParallelLinear
from vllm_lite.layers.mlp import GatedMLP
from vllm_lite.layers.norm import RMSNorm
from vllm_lite.layers.rotary import RotaryEmbedding
from vllm_lite.models.spec import DecoderSpec, decoder_spec
from vllm_lite.quantization.method import LinearMethod


@dataclass(frozen=True, slots=True)
class BuildOptions:
    """How the engine wants a model built, whatever its architecture."""

    dtype: torch.dtype
    cache_format: CacheFormat
    max_model_len: int
    linear_method: LinearMethod
    # Whether the checkpoint has a scale for the numbers of each layer's cached keys and values.
    cache_has_scales: bool = False


class SelfAttention(nn.Module):
    """Projections, rotation and attention of one layer."""

    def __init__(
        self, spec: DecoderSpec, options: BuildOptions, layer: int, rotary: RotaryEmbedding
    ) -> None:
        super().__init__()
        heads, kv_heads = head_shards(spec.num_heads, spec.num_kv_heads)
        self._split = [heads.size, kv_heads.size, kv_heads.size]
        self._shape = (-1, sum(self._split), spec.head_size)
        self._width = heads.size * spec.head_size
        self._rotate = rotary.forward
        method = options.linear_method
        self.qkv_proj = QKVParallelLinear(
            method,
            spec.hidden_size,
            spec.head_size,
            spec.num_heads,
            spec.num_kv_heads,
            bias=spec.qkv_bias,
        )
        self.o_proj = RowParallelLinear(
            method, spec.num_heads * spec.head_size, spec.hidden_size, bias=spec.output_bias
        )
        self._qk_norm = spec.qk_norm
        if spec.qk_norm:
            self.q_norm = RMSNorm(spec.head_size, spec.norm_eps, options.dtype)
            self.k_norm = RMSNorm(spec.head_size, spec.norm_eps, options.dtype)
        self.attn = attention(
            spec.head_size**-0.5,
            spec.sliding_windows[layer],
            cache_has_scales=options.cache_has_scales,
        )

    def forward(self, positions: Tensor, projected: Tensor) -> Tensor:
        """[T] and what qkv_proj made of the normalised stream -> [T, N]."""
        qkv = projected.view(self._shape)
        query, key, value = qkv.split_with_sizes(self._split, 1)
        if self._qk_norm:
            query, key = self.q_norm.norm_heads(query), self.k_norm.norm_heads(key)
        self._rotate(positions, query, key)
        mixed = self.attn.forward(query, key, value)
        return self.o_proj.kernel(mixed.view(-1, self._width))


class DecoderLayer(nn.Module):
    """Attention, then MLP, each behind a norm and added to the residual stream."""

    def __init__(
        self, spec: DecoderSpec, options: BuildOptions, layer: int, rotary: RotaryEmbedding
    ) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(spec.hidden_size, spec.norm_eps, options.dtype)
        self.self_attn = SelfAttention(spec, options, layer, rotary)
        self.post_attention_layernorm = RMSNorm(spec.hidden_size, spec.norm_eps, options.dtype)
        self.mlp = GatedMLP(
            options.linear_method,
            spec.hidden_size,
            spec.intermediate_size,
            spec.hidden_act,
            bias=spec.mlp_bias,
        )

    def forward(
        self, positions: Tensor, hidden: Tensor, residual: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """One layer's output and the stream to add it to, both [T, N]; the first has no stream."""
        qkv, residual = self.input_layernorm.normed_product(
            hidden, residual, self.self_attn.qkv_proj.kernel
        )
        hidden = self.self_attn.forward(positions, qkv)
        return self.mlp.forward(self.post_attention_layernorm, hidden, residual)


class Decoder(nn.Module):
    """Embedding, layers and the last norm."""

    def __init__(self, spec: DecoderSpec, options: BuildOptions) -> None:
        super().__init__()
        self.embed_tokens = VocabParallelEmbedding(
            options.linear_method, spec.vocab_size, spec.hidden_size
        )
        self.rotary_emb = RotaryEmbedding(spec.rotary, options.max_model_len)
        self.layers = nn.ModuleList(
            DecoderLayer(spec, options, layer, self.rotary_emb) for layer in range(spec.num_layers)
        )
        self.norm = RMSNorm(spec.hidden_size, spec.norm_eps, options.dtype)

    def forward(self, input_ids: Tensor, positions: Tensor) -> Tensor:
        """[T] and [T] int64 -> [T, N], normalised."""
        hidden = self.embed_tokens.forward(input_ids)
        residual: Tensor | None = None
        for layer in self.layers:
            hidden, residual = layer.forward(positions, hidden, residual)
        return self.norm.add_and_norm(hidden, residual)[0]


class DecoderForCausalLM(nn.Module):
    """A decoder with an output head; families override `spec`, rarely more."""

    def __init__(self, facts: ModelFacts, options: BuildOptions) -> None:
        super().__init__()
        spec = self.spec(facts)
        self.model = Decoder(spec, options)
        self.lm_head = ParallelLMHead(
            options.linear_method,
            spec.vocab_size,
            spec.hidden_size,
            tied_to=self.model.embed_tokens if spec.tie_word_embeddings else None,
        )
        self._spec = spec
        self._num_kv_heads = head_shards(spec.num_heads, spec.num_kv_heads)[1].size
        self._cache_format = options.cache_format

    @staticmethod
    def spec(facts: ModelFacts) -> DecoderSpec:
        """What this family's checkpoints describe."""
        return decoder_spec(facts)

    @torch.inference_mode()
    def forward(self, input_ids: Tensor, positions: Tensor) -> Tensor:
        return self.model.forward(input_ids, positions)

    @torch.inference_mode()
    def compute_logits(self, hidden: Tensor) -> Tensor:
        return self.lm_head.compute_logits(hidden)

    @torch.inference_mode()
    def greedy_tokens(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        return self.lm_head.greedy_tokens(hidden)

    def kv_cache_spec(self) -> KVCacheSpec:
        spec = self._spec
        windows = set(spec.sliding_windows)
        return KVCacheSpec(
            num_layers=spec.num_layers,
            num_kv_heads=self._num_kv_heads,
            head_size=spec.head_size,
            dtype=self._cache_format.dtype,
            has_row_scales=self._cache_format.has_row_scales,
            # Blocks may be let go only when no layer looks further back.
            sliding_window=None if None in windows else max(w for w in windows if w),
        )

    def bind_kv_cache(self, caches: Sequence[tuple[Tensor, Tensor]]) -> None:
        attentions = [module for module in self.modules() if isinstance(module, Attention)]
        for layer, (key_cache, value_cache) in zip(attentions, caches, strict=True):
            layer.bind_kv_cache(key_cache, value_cache)
