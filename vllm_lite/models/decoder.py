"""The decoder-only transformer that a DecoderSpec describes.

Modules have the names of Hugging Face's checkpoints. Blocks call each other's `forward` or
`kernel` directly: with a few rows, hook handling would cost as much as the arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from vllm_lite.config.facts import ModelFacts
from vllm_lite.core.kv_spec import KVCacheSpec
from vllm_lite.distributed.groups import head_shards
from vllm_lite.kernels.dispatch import ops
from vllm_lite.layers.attention import Attention, LayerCache, attention
from vllm_lite.layers.embedding import LearnedPositions, ParallelLMHead, VocabParallelEmbedding
from vllm_lite.layers.encoder_attention import EncoderAttention
from vllm_lite.layers.linear import QKVParallelLinear, RowParallelLinear
from vllm_lite.layers.norm import Norm, ResidualNorm, make_norm
from vllm_lite.layers.rotary import RotaryTables
from vllm_lite.layers.score_terms import ScoreTerms
from vllm_lite.layers.state import Mixer, MixersBeside, StateCache, StateMixer, StateSpec
from vllm_lite.loader.weight_rules import AnyRule
from vllm_lite.models.direction import for_direction
from vllm_lite.models.ffn import make_mlp
from vllm_lite.models.head_steps import head_norms, head_steps, rotated_write
from vllm_lite.models.heads import Heads, HeadSpec, score_heads
from vllm_lite.models.latent_attention import LatentAttention
from vllm_lite.models.options import BuildOptions
from vllm_lite.models.spec import (
    AttentionSpec,
    DecoderSpec,
    LatentAttentionSpec,
    LayerSpec,
    cached_layers,
    decoder_spec,
)
from vllm_lite.quantization.method import LinearKernel


class SelfAttention(nn.Module):
    """Projections, rotation and attention of one layer."""

    def __init__(
        self,
        spec: AttentionSpec,
        hidden_size: int,
        options: BuildOptions,
        tables: RotaryTables,
        input_size: int = 0,
    ) -> None:
        super().__init__()
        heads, kv_heads = head_shards(spec.num_heads, spec.num_kv_heads)
        value_size = spec.value_size or spec.head_size
        self._width = heads.size * value_size
        name = "qkv_proj"
        if spec.has_output_gate:
            name, self.forward = "qkvg_proj", self._forward_gated  # type: ignore[method-assign]
        projection = QKVParallelLinear(
            options.at(name).linear_method,
            input_size or hidden_size,
            (spec.head_size, value_size),
            spec.num_heads,
            spec.num_kv_heads,
            bias=spec.qkv_bias,
            has_gate=spec.has_output_gate,
        )
        self.add_module(name, projection)
        self._product = (projection,)  # of one, so that it is no second submodule
        self._heads = projection.heads
        self.o_proj = RowParallelLinear(
            options.at("o_proj").linear_method,
            spec.num_heads * value_size,
            hidden_size,
            bias=spec.output_bias,
        )
        self._gate = ops().gated_product
        norms = head_norms(spec, options.dtype)
        if norms is not None:
            self.q_norm, self.k_norm = norms
        self._steps = head_steps(spec, norms, tables)
        terms = ScoreTerms(
            heads=heads,
            softcap=spec.softcap,
            alibi_slopes=spec.alibi_slopes,
            has_sinks=spec.has_sinks,
            is_chunked=spec.is_chunked and spec.window is not None,
        )
        causal = partial(
            attention,
            cache_scales=options.scales_of(kv_heads),
            has_value_size=value_size != spec.head_size,
        )
        make: Callable[..., nn.Module] = EncoderAttention if spec.is_bidirectional else causal
        self.attn: Any = make(spec.scale, spec.window, terms)
        write = rotated_write(spec, options, norms, tables)
        if write is not None:
            self._write, self._num_heads, self._all_heads = write, heads.size, projection.all_heads
            self._attend = self._attend_rotating  # type: ignore[method-assign]
        if spec.qkv_clip is not None:
            self._clip = partial(ops().scaled_add, limit=spec.qkv_clip)
            self.forward = self._forward_clipped  # type: ignore[method-assign]

    @property
    def first(self) -> LinearKernel:
        """[T, N] -> the input of `forward`."""
        return self._product[0].kernel

    def forward(self, positions: Tensor, projected: Tensor) -> Tensor:
        """Positions [T] and the output of `first` -> [T, N]."""
        return self.o_proj.kernel(self._attend(positions, projected))

    def _attend(self, positions: Tensor, projected: Tensor) -> Tensor:
        query, key, value = self._heads(projected)
        for step in self._steps:
            step(positions, query, key)
        return self.attn.forward(query, key, value).view(-1, self._width)  # type: ignore[no-any-return]

    def _attend_rotating(self, positions: Tensor, projected: Tensor) -> Tensor:
        """The same where one operation makes all steps and writes to the cache."""
        heads = self._all_heads(projected)
        self._write(positions, heads, *self.attn.destination())
        return self.attn.attend(heads[:, : self._num_heads]).view(-1, self._width)  # type: ignore[no-any-return]

    def _forward_gated(self, positions: Tensor, projected: Tensor) -> Tensor:
        width = projected.shape[1] - self._width
        projected, gate = projected.split_with_sizes([width, self._width], 1)
        mixed = self._attend(positions, projected)
        return self.o_proj.kernel(self._gate(mixed, gate, "sigmoid"))

    def _forward_clipped(self, positions: Tensor, projected: Tensor) -> Tensor:
        return SelfAttention.forward(self, positions, self._clip(projected, out=projected))


class DecoderLayer(nn.Module):
    """A mixer and a feed-forward block, one after the other or side by side."""

    self_attn: Any
    mixer: StateMixer

    def __init__(
        self,
        spec: LayerSpec,
        decoder: DecoderSpec,
        options: BuildOptions,
        tables: RotaryTables,
        previous: DecoderLayer | None,
    ) -> None:
        super().__init__()

        def norm(*places: str) -> Norm | None:
            is_here = spec.norms in (*places, "both")
            return make_norm(decoder.norm, decoder.hidden_size, options.dtype) if is_here else None

        self.renews_stream = spec.norms == "of the sum"
        self.input_layernorm = norm("before", "renewing")
        scale, (mixer_scale, self.stream_scale) = decoder.residual_scale, spec.stream_scales
        renews = spec.norms == "renewing"
        self._enter = join_stream(self.input_layernorm, previous, scale, renews)
        if spec.mixer is None:
            assert spec.ffn is not None
            self.mlp = make_mlp(spec.ffn, decoder.hidden_size, options.at("mlp"))
            self.ffn_output_norm = norm("after")
            self.forward = self._forward_mlp  # type: ignore[method-assign]
            return
        self._mixer = self._make_mixer(spec, decoder.hidden_size, options, tables)
        self.mixer_output_norm = norm("after")
        self._add = ops().scaled_add
        if spec.ffn is None:
            self.forward = self._forward_mixer  # type: ignore[method-assign]
            return
        self.post_attention_layernorm = (
            None
            if spec.parallel == "one norm"
            else norm("before", "before ffn", "of the sum", "renewing")
        )
        self.mlp = make_mlp(spec.ffn, decoder.hidden_size, options.at("mlp"))
        self.ffn_output_norm = norm("after", "of the sum")
        self._between = ResidualNorm(
            self.post_attention_layernorm,
            self.mixer_output_norm,
            scale,
            mixer_scale,
            renews_stream=self.renews_stream or renews,
        )
        if spec.parallel != "no":
            self.forward = self._forward_side_by_side  # type: ignore[method-assign]

    @property
    def last_norm(self) -> Norm | None:
        """The norm of the layer's output, before or after it joins the residual stream."""
        return self.ffn_output_norm if hasattr(self, "mlp") else self.mixer_output_norm

    def _make_mixer(
        self,
        spec: LayerSpec,
        hidden_size: int,
        options: BuildOptions,
        tables: RotaryTables,
    ) -> Mixer:
        """Build the mixer, a submodule named after its kind, or both kinds."""
        attention, state = spec.mixer, spec.beside_attention
        if isinstance(attention, StateSpec):
            attention, state = None, attention
        if state is not None:
            mixer = state.make(options.at(state.name).parts(hidden_size))
            self.add_module(state.name, mixer)
        if attention is None:
            return mixer
        at = options.at("self_attn")
        if isinstance(attention, LatentAttentionSpec):
            self.self_attn = LatentAttention(attention, hidden_size, at, tables)
        else:
            self.self_attn = SelfAttention(attention, hidden_size, at, tables)
        return self.self_attn if state is None else MixersBeside(self.self_attn, mixer)

    def forward(
        self, positions: Tensor, hidden: Tensor, residual: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """One layer's output and the stream to add it to, both [T, N]; the first has no stream."""
        mixer, mlp = self._mixer, self.mlp
        projected, residual = self._enter.normed_product(hidden, residual, mixer.first)
        hidden = mixer.forward(positions, projected)
        projected, residual = self._between.normed_product(hidden, residual, mlp.first)
        return mlp.forward(projected), residual

    def _forward_mixer(
        self, positions: Tensor, hidden: Tensor, residual: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """The same where there is no feed-forward block."""
        mixer = self._mixer
        projected, residual = self._enter.normed_product(hidden, residual, mixer.first)
        return mixer.forward(positions, projected), residual

    def _forward_mlp(
        self, positions: Tensor, hidden: Tensor, residual: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """The same where there is no mixer."""
        projected, residual = self._enter.normed_product(hidden, residual, self.mlp.first)
        return self.mlp.forward(projected), residual

    def _forward_side_by_side(
        self, positions: Tensor, hidden: Tensor, residual: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """The same where both blocks read one stream (Wang and Komatsuzaki, 2021)."""
        mixer, mlp, norm = self._mixer, self.mlp, self.post_attention_layernorm
        normed, residual = self._enter.add_and_norm(hidden, residual)
        mixed = mixer.forward(positions, mixer.first(normed))
        fed = mlp.forward(mlp.first(normed if norm is None else norm.forward(residual)))
        return self._add(mixed, fed, out=mixed), residual


def join_stream(
    before: Norm | None, previous: DecoderLayer | None, scale: float, renews: bool = False
) -> ResidualNorm:
    """The residual step between the layer `previous`, or the embedding, and the next layer."""
    if previous is None:
        return ResidualNorm(before, renews_stream=renews)
    if previous.renews_stream:
        assert before is None, "the stream is normalised twice"
        return ResidualNorm(previous.last_norm, None, scale, renews_stream=True)
    scales = scale, previous.stream_scale
    return ResidualNorm(before, previous.last_norm, *scales, renews_stream=renews)


class Decoder(nn.Module):
    """Embedding, layers and the last norm."""

    layer_class: ClassVar[type[DecoderLayer]] = DecoderLayer

    def __init__(self, spec: DecoderSpec, options: BuildOptions) -> None:
        super().__init__()
        self._make_entrance(spec, options)
        self.rotary_emb = RotaryTables(options.max_model_len)
        self.layers = nn.ModuleList()
        last: DecoderLayer | None = None
        for i, layer in enumerate(spec.layers):
            last = self.layer_class(layer, spec, options.at(f"layers.{i}"), self.rotary_emb, last)
            self.layers.append(last)
        self.norm = (
            make_norm(spec.norm, spec.hidden_size, options.dtype) if spec.has_last_norm else None
        )
        self.leave = join_stream(self.norm, last, spec.residual_scale)

    def _make_entrance(self, spec: DecoderSpec, options: BuildOptions) -> None:
        self.embed_tokens = VocabParallelEmbedding(
            options.at("embed_tokens").linear_method,
            spec.vocab_size,
            spec.embedding_size or spec.hidden_size,
        )
        # What follows the look-up: functions of vectors [T, N] and positions [T].
        self.entering: list[Callable[[Tensor, Tensor], Tensor]] = []
        # Rounded as the embedding is.
        scale = torch.tensor(spec.embedding_scale, device="cpu").to(options.dtype).item()
        if scale != 1.0:
            add = ops().scaled_add
            self.entering.append(lambda hidden, _: add(hidden, None, scale, out=hidden))
        if spec.num_learned_positions:
            self.embed_positions = LearnedPositions(
                spec.num_learned_positions, spec.hidden_size, options.dtype
            )
            self.entering.append(self.embed_positions.add_to)
        if spec.has_embedding_norm:
            norm = self.embed_norm = make_norm(spec.norm, spec.hidden_size, options.dtype)
            self.entering.append(lambda hidden, _: norm.forward(hidden, out=hidden))

    def enter(self, input_ids: Tensor, positions: Tensor) -> Tensor:
        """[T] and [T] int64 -> the first layer's input [T, N]."""
        hidden = self.embed_tokens.forward(input_ids)
        for enter in self.entering:
            hidden = enter(hidden, positions)
        return hidden

    def forward(self, input_ids: Tensor, positions: Tensor) -> Tensor:
        """[T] and [T] int64 -> [T, N], normalised."""
        hidden = self.enter(input_ids, positions)
        residual: Tensor | None = None
        for layer in self.layers:
            hidden, residual = layer.forward(positions, hidden, residual)
        return self.leave.add_and_norm(hidden, residual)[0]


class DecoderForCausalLM(nn.Module):
    """A decoder with an output head; families override `spec`, rarely more."""

    decoder_class: ClassVar[type[Decoder]] = Decoder
    # Rules for layers of this family's checkpoints that have other names.
    rules: ClassVar[Sequence[AnyRule]] = ()

    def __init__(self, facts: ModelFacts, options: BuildOptions) -> None:
        super().__init__()
        spec = for_direction(self.spec(facts), facts)
        self.model = self.decoder_class(spec, options.at("model"))
        width = spec.embedding_size or spec.hidden_size
        if facts.pooling is not None:
            self.heads = Heads(self.heads_of(facts), width, options.dtype, facts.pooling)
        else:
            self.lm_head = ParallelLMHead(
                options.at("lm_head").linear_method,
                spec.vocab_size,
                width,
                tied_to=self.model.embed_tokens if spec.tie_word_embeddings else None,
                scale=spec.logit_scale,
                soft_cap=spec.logit_cap,
                bias=spec.head_bias,
            )
        states = tuple(mixer.cache_spec for mixer in self._state_mixers())
        self._cache_spec = KVCacheSpec(cached_layers(spec, options.cache_format), states)

    @staticmethod
    def spec(facts: ModelFacts) -> DecoderSpec:
        return decoder_spec(facts)

    @classmethod
    def weight_rules(cls, facts: ModelFacts) -> Sequence[AnyRule]:
        """The rules, where some take sizes of the checkpoint."""
        return cls.rules

    @torch.inference_mode()
    def forward(self, input_ids: Tensor, positions: Tensor) -> Tensor:
        return self.model.forward(input_ids, positions)

    @classmethod
    def heads_of(cls, facts: ModelFacts) -> Mapping[str, HeadSpec]:
        """The heads of tasks other than text; tasks without one answer hidden states."""
        return score_heads(facts)

    def pooled(self, task: str, rows: Tensor) -> Tensor:
        return self.heads.forward(task, rows)

    @torch.inference_mode()
    def compute_logits(self, hidden: Tensor) -> Tensor:
        return self.lm_head.compute_logits(hidden)

    @torch.inference_mode()
    def greedy_tokens(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        return self.lm_head.greedy_tokens(hidden)

    def kv_cache_spec(self) -> KVCacheSpec:
        return self._cache_spec

    def bind_kv_cache(
        self, caches: Sequence[LayerCache], states: Sequence[StateCache] = ()
    ) -> None:
        attentions = [module for module in self.modules() if isinstance(module, Attention)]
        for layer, cache in zip(attentions, caches, strict=True):
            layer.bind_kv_cache(cache)
        for mixer, state in zip(self._state_mixers(), states, strict=True):
            mixer.bind_state(state)

    def _state_mixers(self) -> list[StateMixer]:
        return [module for module in self.modules() if isinstance(module, StateMixer)]
