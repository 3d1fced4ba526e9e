"""Parts of Gemma 3n and Gemma 4: each layer's own input, and layers that read another's cache.

Beside the embedding that begins the residual stream, tokens have a short vector for each layer,
from a table of their own and from the embedding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import Tensor, nn

from vllm_lite.config.facts import ModelFacts
from vllm_lite.distributed.groups import Shard, head_shards
from vllm_lite.kernels.dispatch import ops
from vllm_lite.layers.activation import activation_name
from vllm_lite.layers.attention import Attention, attention
from vllm_lite.layers.embedding import VocabParallelEmbedding
from vllm_lite.layers.linear import ParallelLinear, RowParallelLinear
from vllm_lite.layers.norm import Norm, NormSpec, make_norm
from vllm_lite.layers.rotary import RotaryTables
from vllm_lite.layers.score_terms import ScoreTerms
from vllm_lite.models.decoder import Decoder, DecoderLayer
from vllm_lite.models.options import BuildOptions
from vllm_lite.models.spec import AttentionSpec, DecoderSpec, LayerSpec
from vllm_lite.quantization.method import LinearKernel

# Layers that make and use own inputs, by their names in checkpoints.
OWN_INPUT_NAMES = {
    "model.embed_tokens_per_layer": "model.own_inputs.table",
    "model.per_layer_model_projection": "model.own_inputs.projection",
    "model.per_layer_projection_norm": "model.own_inputs.norm",
    "model.layers.*.per_layer_input_gate": "model.layers.*.own_input.gate",
    "model.layers.*.per_layer_projection": "model.layers.*.own_input.projection",
    "model.layers.*.post_per_layer_input_norm": "model.layers.*.own_input.norm",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SharingAttentionSpec(AttentionSpec):
    """Attention with queries, keys and values normalised, the values without a weight."""

    qk_norm: NormSpec
    # The number of the layer whose cache it reads; it has no keys and values then.
    cache_of: int | None = None
    # What is projected to keys is values too, before either is normalised.
    has_values_of_keys: bool = False

    @property
    def has_cache(self) -> bool:
        return self.cache_of is None


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnInputSpec:
    """Each layer's own input: its size, and the rows of its table."""

    size: int
    rows: int
    act: str


class SharingAttention(nn.Module):
    """Projections, norms, rotation and attention of one layer, maybe over another's cache."""

    def __init__(
        self,
        spec: SharingAttentionSpec,
        hidden_size: int,
        options: BuildOptions,
        tables: RotaryTables,
    ) -> None:
        super().__init__()
        heads, kv_heads = head_shards(spec.num_heads, spec.num_kv_heads)
        parts = {"q": heads, "k": kv_heads, "v": kv_heads}
        if spec.has_values_of_keys:
            del parts["v"]
        if spec.cache_of is not None:
            parts = {"q": heads}
        self._split = [part.size for part in parts.values()]
        self._shape = (-1, sum(self._split), spec.head_size)
        self._width = heads.size * spec.head_size
        outputs = {name: part.scaled(spec.head_size) for name, part in parts.items()}
        self.qkv_proj = ParallelLinear(
            options.at("qkv_proj").linear_method,
            Shard.whole(hidden_size),
            outputs,
            bias=spec.qkv_bias,
        )
        self.o_proj = RowParallelLinear(
            options.at("o_proj").linear_method,
            spec.num_heads * spec.head_size,
            hidden_size,
            bias=spec.output_bias,
        )
        assert spec.rotary is not None
        self._rotate = tables.of(spec.rotary).forward
        self.q_norm = make_norm(spec.qk_norm, spec.head_size, options.dtype)
        if spec.cache_of is not None:
            self.forward = self._forward_sharing  # type: ignore[method-assign]
            return
        self.k_norm = make_norm(spec.qk_norm, spec.head_size, options.dtype)
        unweighted = replace(spec.qk_norm, has_weight=False)
        self.v_norm = make_norm(unweighted, spec.head_size, options.dtype)
        self.attn = attention(
            spec.scale,
            spec.window,
            ScoreTerms(heads=heads),
            cache_scales=options.scales_of(kv_heads),
        )

    def read(self, cached: Attention) -> None:
        """Attend to another layer's cache, which that layer writes."""
        self._cached = (cached,)  # of one, so that it is no second submodule

    @property
    def first(self) -> LinearKernel:
        """[T, N] -> the input of `forward`."""
        return self.qkv_proj.kernel

    def forward(self, positions: Tensor, projected: Tensor) -> Tensor:
        """Positions [T] and the output of `first` -> [T, N]."""
        parts = projected.view(self._shape).split_with_sizes(self._split, 1)
        query, key = parts[:2]
        value = self.v_norm.forward(parts[-1])
        self.q_norm.norm_heads(query)
        self.k_norm.norm_heads(key)
        self._rotate(positions, query, key)
        mixed = self.attn.forward(query, key, value)
        return self.o_proj.kernel(mixed.view(-1, self._width))

    def _forward_sharing(self, positions: Tensor, projected: Tensor) -> Tensor:
        query = self.q_norm.norm_heads(projected.view(self._shape))
        # The operation rotates two tensors.
        first, rest = query.split_with_sizes([1, query.shape[1] - 1], 1)
        self._rotate(positions, first, rest)
        mixed = self._cached[0].attend(query)
        return self.o_proj.kernel(mixed.view(-1, self._width))


class SharingLayer(DecoderLayer):
    """A layer whose attention may share a cache."""

    def _make_mixer(
        self, spec: LayerSpec, hidden_size: int, options: BuildOptions, tables: RotaryTables
    ) -> SharingAttention:
        assert isinstance(spec.mixer, SharingAttentionSpec)
        mixer = SharingAttention(spec.mixer, hidden_size, options.at("self_attn"), tables)
        self.self_attn = mixer
        return mixer


class OwnInput(nn.Module):
    """Makes of a layer's own input what is added to the stream at the layer's end."""

    def __init__(self, spec: OwnInputSpec, decoder: DecoderSpec, options: BuildOptions) -> None:
        super().__init__()
        width, size = decoder.hidden_size, spec.size
        self.gate = options.at("per_layer_input_gate").whole_linear(width, size)
        self.projection = options.at("per_layer_projection").whole_linear(size, width)
        self.norm = make_norm(decoder.norm, width, options.dtype)
        self._act = activation_name(spec.act)
        self._multiply = ops().gated_product

    def forward(self, x: Tensor, given: Tensor) -> Tensor:
        """x [T, N] and the layer's own input [T, P] -> [T, N], to be added to the stream."""
        gated = self._multiply(given, self.gate.kernel(x), self._act)
        made = self.projection.kernel(gated)
        return self.norm.forward(made, out=made)


class OwnInputs(nn.Module):
    """All layers' own inputs of a step's tokens."""

    def __init__(self, spec: OwnInputSpec, decoder: DecoderSpec, options: BuildOptions) -> None:
        super().__init__()
        width = len(decoder.layers) * spec.size
        self.table = VocabParallelEmbedding(
            options.at("embed_tokens_per_layer").linear_method, spec.rows, width
        )
        hidden_size = decoder.hidden_size
        at = options.at("per_layer_model_projection")
        self.projection = at.whole_linear(hidden_size, width)
        # Of rows that would be divided by the root of the hidden size first.
        norm = replace(decoder.norm, eps=decoder.norm.eps * hidden_size)
        self.norm: Norm = make_norm(norm, spec.size, options.dtype)
        self._shape = (-1, len(decoder.layers), spec.size)
        self._size, self._add = spec.size, ops().scaled_add

    def forward(self, input_ids: Tensor, embedding: Tensor) -> Sequence[Tensor]:
        """[T] int64 and the tokens' embedding [T, N] -> [T, P] for each layer."""
        made = self.projection.kernel(embedding)
        self.norm.norm_heads(made.view(self._shape))
        scale = 2.0**-0.5
        own = self.table.forward(input_ids)
        made = self._add(made, own, scale, scale * self._size**0.5, out=made)
        return made.split_with_sizes([self._size] * self._shape[1], 1)


def connect_caches(decoder: Decoder, spec: DecoderSpec) -> None:
    """Have layers that share a cache read that of the layer they name."""
    mixers = [m for m in decoder.modules() if isinstance(m, SharingAttention)]
    for mixer, layer in zip(mixers, spec.layers, strict=True):
        assert isinstance(layer.mixer, SharingAttentionSpec)
        if layer.mixer.cache_of is not None:
            mixer.read(mixers[layer.mixer.cache_of].attn)


def shared_caches(facts: ModelFacts, is_local: Sequence[bool]) -> list[int | None]:
    """For each layer the one whose cache it reads: of the last num_kv_shared_layers, the last of
    their kind before those."""
    count, shared = facts.num_layers, facts.hf_config.get("num_kv_shared_layers") or 0
    if not isinstance(shared, int) or not 0 <= shared < count:
        raise facts.error(
            f"num_kv_shared_layers is {shared!r} of {count} layers in its configuration"
        )
    last = {kind: i for i, kind in enumerate(is_local[: count - shared])}
    if not set(is_local) <= set(last):
        raise facts.error(
            f"none of the first {count - shared} layers of its configuration has a cache for "
            "layers of another kind among the last num_kv_shared_layers to read"
        )
    own: list[int | None] = [None] * (count - shared)
    return own + [last[kind] for kind in is_local[count - shared :]]
