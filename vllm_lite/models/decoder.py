"""The decoder-only transformer that a DecoderSpec describes.

Modules bear the names of Hugging Face's checkpoints. Blocks call each other's `forward` or
`kernel` directly: with a few rows, hook handling would cost as much as the arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from vllm_lite.config.facts import ModelFacts
from vllm_lite.core.kv_spec import CacheFormat, KVCacheSpec
from vllm_lite.distributed.groups import head_shards
from vllm_lite.layers.attention import Attention, attention
from vllm_lite.layers.embedding import ParallelLMHead, VocabParallelEmbedding
from vllm_lite.layers.linear import QKVParallelLinear, RowParallelLinear
from vllm_lite.layers.mlp import GatedMLP
from vllm_lite.layers.norm import make_norm
from vllm_lite.layers.rotary import RotaryEmbedding, RotaryTables
from vllm_lite.loader.weight_rules import Rule
from vllm_lite.models.spec import AttentionSpec, DecoderSpec, LayerSpec, decoder_spec
from vllm_lite.quantization.method import LinearMethod


@dataclass(frozen=True, slots=True)
class BuildOptions:
    """How the engine wants the layer at `path` built, whatever the model's architecture."""

    dtype: torch.dtype
    cache_format: CacheFormat
    max_model_len: int
    # By the path of a layer.
    methods: Callable[[str], LinearMethod]
    # Whether the checkpoint has a scale for the numbers of each layer's cached keys and values.
    cache_has_scales: bool = False
    path: str = ""

    def at(self, name: str) -> BuildOptions:
        """For the layer `name` of the one at `path`."""
        return replace(self, path=f"{self.path}.{name}" if self.path else name)

    @property
    def linear_method(self) -> LinearMethod:
        """How the layer at `path` stores its weights."""
        return self.methods(self.path)


class SelfAttention(nn.Module):
    """Projections, rotation and attention of one layer."""

    def __init__(
        self,
        spec: AttentionSpec,
        hidden_size: int,
        options: BuildOptions,
        rotary: RotaryEmbedding | None,
    ) -> None:
        super().__init__()
        heads, kv_heads = head_shards(spec.num_heads, spec.num_kv_heads)
        self._split = [heads.size, kv_heads.size, kv_heads.size]
        self._shape = (-1, sum(self._split), spec.head_size)
        self._width = heads.size * spec.head_size
        self._rotate = None if rotary is None else rotary.forward
        self.qkv_proj = QKVParallelLinear(
            options.at("qkv_proj").linear_method,
            hidden_size,
            spec.head_size,
            spec.num_heads,
            spec.num_kv_heads,
            bias=spec.qkv_bias,
        )
        self.o_proj = RowParallelLinear(
            options.at("o_proj").linear_method,
            spec.num_heads * spec.head_size,
            hidden_size,
            bias=spec.output_bias,
        )
        self._qk_norm = spec.qk_norm is not None
        if spec.qk_norm is not None:
            self.q_norm = make_norm(spec.qk_norm, spec.head_size, options.dtype)
            self.k_norm = make_norm(spec.qk_norm, spec.head_size, options.dtype)
        self.attn = attention(spec.scale, spec.window, cache_has_scales=options.cache_has_scales)

    def forward(self, positions: Tensor, projected: Tensor) -> Tensor:
        """[T] and what qkv_proj made of the normalised stream -> [T, N]."""
        qkv = projected.view(self._shape)
        query, key, value = qkv.split_with_sizes(self._split, 1)
        if self._qk_norm:
            query, key = self.q_norm.norm_heads(query), self.k_norm.norm_heads(key)
        if self._rotate is not None:
            self._rotate(positions, query, key)
        mixed = self.attn.forward(query, key, value)
        return self.o_proj.kernel(mixed.view(-1, self._width))


class DecoderLayer(nn.Module):
    """Attention, then MLP, each behind a norm and added to the residual stream."""

    def __init__(
        self,
        spec: LayerSpec,
        decoder: DecoderSpec,
        options: BuildOptions,
        rotary: RotaryEmbedding | None,
    ) -> None:
        super().__init__()
        size = decoder.hidden_size
        self.input_layernorm = make_norm(decoder.norm, size, options.dtype)
        self.self_attn = SelfAttention(spec.mixer, size, options.at("self_attn"), rotary)
        self.post_attention_layernorm = make_norm(decoder.norm, size, options.dtype)
        mlp = options.at("mlp")
        self.mlp = GatedMLP(
            mlp.at("gate_up_proj").linear_method,
            mlp.at("down_proj").linear_method,
            size,
            spec.ffn.intermediate_size,
            spec.ffn.act,
            bias=spec.ffn.bias,
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
            options.at("embed_tokens").linear_method, spec.vocab_size, spec.hidden_size
        )
        self.rotary_emb = RotaryTables(
            [layer.mixer.rotary for layer in spec.layers], options.max_model_len
        )
        self.layers = nn.ModuleList(
            DecoderLayer(
                layer, spec, options.at(f"layers.{i}"), self.rotary_emb.of(layer.mixer.rotary)
            )
            for i, layer in enumerate(spec.layers)
        )
        self.norm = make_norm(spec.norm, spec.hidden_size, options.dtype)

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
        self.model = Decoder(spec, options.at("model"))
        self.lm_head = ParallelLMHead(
            options.at("lm_head").linear_method,
            spec.vocab_size,
            spec.hidden_size,
            tied_to=self.model.embed_tokens if spec.tie_word_embeddings else None,
        )
        self._spec = spec
        mixer = spec.layers[0].mixer
        self._num_kv_heads = head_shards(mixer.num_heads, mixer.num_kv_heads)[1].size
        self._cache_format = options.cache_format

    @staticmethod
    def spec(facts: ModelFacts) -> DecoderSpec:
        """What this family's checkpoints describe."""
        return decoder_spec(facts)

    @staticmethod
    def weight_rules(facts: ModelFacts) -> Sequence[Rule]:
        """Layers of this family's checkpoints that do not bear the names of the model's own."""
        return ()

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
        mixers = [layer.mixer for layer in self._spec.layers]
        windows = {mixer.window for mixer in mixers}
        return KVCacheSpec(
            num_layers=len(mixers),
            num_kv_heads=self._num_kv_heads,
            head_size=mixers[0].head_size,
            dtype=self._cache_format.dtype,
            has_row_scales=self._cache_format.has_row_scales,
            # Blocks may be let go only when no layer looks further back.
            sliding_window=None if None in windows else max(w for w in windows if w),
        )

    def bind_kv_cache(self, caches: Sequence[tuple[Tensor, Tensor]]) -> None:
        attentions = [module for module in self.modules() if isinstance(module, Attention)]
        for layer, (key_cache, value_cache) in zip(attentions, caches, strict=True):
            layer.bind_kv_cache(key_cache, value_cache)
