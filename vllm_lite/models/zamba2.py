"""Zamba 2: layers of Mamba 2, and before some of them a transformer block that they share.

A block stands where it is used first. Each use has low-rank adapters and a cache of its own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor, nn

from vllm_lite.config.facts import ModelFacts
from vllm_lite.distributed.groups import Shard, head_shards
from vllm_lite.kernels.dispatch import ops
from vllm_lite.layers.attention import Attention, attention
from vllm_lite.layers.linear import QKVParallelLinear, RowParallelLinear
from vllm_lite.layers.mlp import GatedMLP
from vllm_lite.layers.norm import ResidualNorm, make_norm
from vllm_lite.layers.rotary import RotaryTables
from vllm_lite.layers.states.mamba2 import Mamba2Spec
from vllm_lite.loader.weight_rules import Rule, fused, renamed
from vllm_lite.models.decoder import DecoderForCausalLM, DecoderLayer
from vllm_lite.models.hybrid import layer_kinds
from vllm_lite.models.mamba import checked, mamba2_rules
from vllm_lite.models.options import BuildOptions
from vllm_lite.models.spec import (
    AttentionSpec,
    DecoderSpec,
    LayerSpec,
    decoder_spec,
    positive,
    rotary_settings,
    size,
)

_KINDS = {"linear_attention": "state", "mamba": "state", "hybrid": "hybrid"}
_ADAPTED = "use_shared_attention_adapter"


class Adapter(nn.ModuleList):
    """A product of low rank, of which some outputs are added to those of a larger one."""

    def __init__(
        self, options: BuildOptions, inputs: int, rank: int, outputs: int, taken: Sequence[Shard]
    ) -> None:
        self._kernels = tuple(
            options.at(name).whole_linear(n, m)
            for name, n, m in (("0", inputs, rank), ("1", rank, outputs))
        )
        super().__init__(self._kernels)
        # What lies between, and what is taken, in turn.
        cuts = [0, *(cut for shard in taken for cut in (shard.start, shard.start + shard.size))]
        self._cuts = [end - start for start, end in zip(cuts, [*cuts[1:], outputs], strict=True)]
        self._add = ops().scaled_add

    def add_to(self, rows: Tensor, x: Tensor) -> None:
        """Add the product of x [T, inputs] to `rows`, which hold the outputs taken."""
        down, up = self._kernels
        own = up.kernel(down.kernel(x)).split_with_sizes(self._cuts, 1)[1::2]
        for part, added in zip(rows.split_with_sizes(self._cuts[1::2], 1), own, strict=True):
            self._add(part, added, out=part)


class Adapters(nn.ModuleDict):
    """Those of all uses of a block."""

    def __init__(
        self, options: BuildOptions, uses: Sequence[int], sizes: tuple[int, int, int], *taken: Shard
    ) -> None:
        """`sizes` are inputs, rank and outputs."""
        self.of = {use: Adapter(options.at(str(use)), *sizes, taken) for use in uses}
        super().__init__({str(use): adapter for use, adapter in self.of.items()})


class SharedAttention(nn.Module):
    """Attention whose projections may be adapted for each use."""

    def __init__(
        self, facts: ModelFacts, uses: Sequence[int], options: BuildOptions, tables: RotaryTables
    ) -> None:
        super().__init__()
        spec, width = _attention(facts), 2 * facts.hidden_size
        features = spec.num_heads * spec.head_size
        heads, kv_heads = head_shards(spec.num_heads, spec.num_kv_heads)
        self.qkv_proj = QKVParallelLinear(
            options.at("qkv_proj").linear_method,
            width,
            (spec.head_size, spec.head_size),
            spec.num_heads,
            spec.num_kv_heads,
        )
        method = options.at("o_proj").linear_method
        self.o_proj = RowParallelLinear(method, features, facts.hidden_size)
        parts = {"q": heads, "k": kv_heads, "v": kv_heads}
        self._widths = [shard.size * spec.head_size for shard in parts.values()]
        self._rotate = None if spec.rotary is None else tables.of(spec.rotary).forward
        self._adapters: list[Adapters] = []
        sizes = width, size(facts, "adapter_rank"), width
        for part, shard in parts.items() if facts.hf_config.get(_ADAPTED) else ():
            name = f"linear_{part}_adapter_list"
            adapters = Adapters(options.at(name), uses, sizes, shard.scaled(spec.head_size))
            self.add_module(name, adapters)
            self._adapters.append(adapters)

    def forward(self, use: int, attn: Attention, positions: Tensor, x: Tensor) -> Tensor:
        """Positions [T] and rows [T, 2 N] -> [T, N]."""
        projected = self.qkv_proj.kernel(x)
        if self._adapters:
            parts = projected.split_with_sizes(self._widths, 1)
            for part, adapters in zip(parts, self._adapters, strict=True):
                adapters.of[use].add_to(part, x)
        query, key, value = self.qkv_proj.heads(projected)
        if self._rotate is not None:
            self._rotate(positions, query, key)
        return self.o_proj.kernel(attn.forward(query, key, value).view(-1, self._widths[0]))


class SharedMLP(GatedMLP):
    """A gated MLP whose first layer is adapted for each use."""

    def __init__(self, facts: ModelFacts, uses: Sequence[int], options: BuildOptions) -> None:
        hf, width, inner = facts.hf_config, facts.hidden_size, size(facts, "intermediate_size")
        first, down = (options.at(name).linear_method for name in ("gate_up_proj", "down_proj"))
        bias, own = bool(hf.get("add_bias_linear")), Shard.even(inner, "features")
        super().__init__(first, down, width, inner, hf["hidden_act"], bias=bias)
        self.gate_up_proj_adapter_list = Adapters(
            options.at("gate_up_proj_adapter_list"),
            uses,
            (width, size(facts, "adapter_rank"), 2 * inner),
            own,
            replace(own, start=own.start + inner),
        )

    def adapted(self, use: int, x: Tensor) -> Tensor:
        """[T, N] -> [T, N]."""
        rows = self.gate_up_proj.kernel(x)
        self.gate_up_proj_adapter_list.of[use].add_to(rows, x)
        return self._activated_product(rows, self.down_proj.kernel)


class SharedBlock(nn.Module):
    """Attention and an MLP, one after the other, without a residual stream."""

    def __init__(
        self, facts: ModelFacts, uses: Sequence[int], options: BuildOptions, tables: RotaryTables
    ) -> None:
        super().__init__()
        norm, width = decoder_spec(facts).norm, facts.hidden_size
        self.input_layernorm = make_norm(norm, 2 * width, options.dtype)
        self.self_attn = SharedAttention(facts, uses, options.at("self_attn"), tables)
        self.pre_ff_layernorm = make_norm(norm, width, options.dtype)
        self.feed_forward = SharedMLP(facts, uses, options.at("feed_forward"))

    def forward(self, use: int, attn: Attention, positions: Tensor, x: Tensor) -> Tensor:
        """Positions [T] and rows [T, 2 N] -> [T, N]."""
        mixed = self.self_attn.forward(use, attn, positions, self.input_layernorm.forward(x))
        return self.feed_forward.adapted(use, self.pre_ff_layernorm.forward(mixed, out=mixed))


class EmbeddingBeside:
    """A step's rows [T, 2 N]: the stream at one layer after another, beside the embedding."""

    rows: Tensor

    def __init__(self) -> None:
        self._add = ops().scaled_add

    def keep(self, hidden: Tensor, positions: Tensor) -> Tensor:
        """Keep the embedding [T, N], and return it."""
        num_tokens, width = hidden.shape
        self.rows = hidden.new_empty(num_tokens, 2 * width)
        self._add(hidden, None, out=self.rows[:, width:])
        return hidden

    def of(self, stream: Tensor) -> Tensor:
        """The rows with `stream` [T, N] in them."""
        self._add(stream, None, out=self.rows[:, : stream.shape[1]])
        return self.rows


class HybridLayer(nn.Module):
    """A layer of Mamba 2 to whose input, but not to the stream, a use of a block is added."""

    def __init__(
        self,
        use: int,
        block: SharedBlock,
        facts: ModelFacts,
        mamba_decoder: DecoderLayer,
        embedding: EmbeddingBeside,
        options: BuildOptions,
    ) -> None:
        super().__init__()
        self._use, self._embedding, self._add = use, embedding, ops().scaled_add
        # Of one, so that it is a submodule only where it is first used.
        self._block = (block,)
        spec = _attention(facts)
        scales = options.scales_of(head_shards(spec.num_heads, spec.num_kv_heads)[1])
        self.attn = attention(spec.scale, cache_scales=scales)
        self.linear = options.at("linear").whole_linear(facts.hidden_size, facts.hidden_size)
        self.mamba_decoder = mamba_decoder
        self._enter = ResidualNorm(mamba_decoder.input_layernorm)

    def forward(
        self, positions: Tensor, hidden: Tensor, residual: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """As DecoderLayer.forward."""
        mixer, (block,) = self.mamba_decoder.mixer, self._block
        stream = hidden if residual is None else self._add(hidden, residual, out=residual)
        rows = self._embedding.of(stream)
        more = self.linear.kernel(block.forward(self._use, self.attn, positions, rows))
        total = self._add(more, stream, out=more)
        projected, _ = self._enter.normed_product(total, None, mixer.first)
        return mixer.forward(positions, projected), stream


class Zamba2ForCausalLM(DecoderForCausalLM):
    """Glorioso et al., 2024 (arXiv:2411.15242)."""

    def __init__(self, facts: ModelFacts, options: BuildOptions) -> None:
        super().__init__(facts, options)
        spec, tables, embedding = self.spec(facts), self.model.rotary_emb, EmbeddingBeside()
        self.model.entering.append(embedding.keep)
        places = [i for i, kind in enumerate(layer_kinds(facts, _KINDS)) if kind == "hybrid"]
        count, blocks = size(facts, "num_mem_blocks"), []
        for use, i in enumerate(places):
            at, is_first = options.at(f"model.layers.{i}"), use < count
            if is_first:
                uses = range(use, len(places), count)
                blocks.append(SharedBlock(facts, uses, at.at("shared_transformer"), tables))
            mamba = DecoderLayer(spec.layers[i], spec, at.at("mamba_decoder"), tables, None)
            layer = HybridLayer(use, blocks[use % count], facts, mamba, embedding, at)
            if is_first:
                layer.shared_transformer = blocks[use]
            self.model.layers[i] = layer
        cached = _attention(facts).cache(options.cache_format)
        self._cache_spec = replace(self._cache_spec, layers=(cached,) * len(places))

    @staticmethod
    def spec(facts: ModelFacts) -> DecoderSpec:
        layer = LayerSpec(mixer=_mixer(facts), ffn=None)
        return replace(decoder_spec(facts), layers=(layer,) * facts.num_layers)

    @staticmethod
    def weight_rules(facts: ModelFacts) -> Sequence[Rule]:
        layer, mixer, inner = "model.layers.*", _mixer(facts), size(facts, "intermediate_size")
        hybrid, mlp = f"{layer}.mamba_decoder", f"{layer}.shared_transformer.feed_forward"
        return (
            *renamed({"model.final_layernorm": "model.norm"}),
            *mamba2_rules(f"{layer}.mamba", f"{layer}.mixer", mixer),
            *mamba2_rules(f"{hybrid}.mamba", f"{hybrid}.mixer", mixer),
            fused(f"{mlp}.gate_up_proj", mlp, {"gate_proj": inner, "up_proj": inner}),
        )


def _mixer(facts: ModelFacts) -> Mamba2Spec:
    hf, num_heads = facts.hf_config, size(facts, "n_mamba_heads")
    inner, bias = size(facts, "mamba_expand") * facts.hidden_size, bool(hf.get("add_bias_linear"))
    mixer = Mamba2Spec(
        num_heads=num_heads,
        head_size=inner // num_heads,
        num_groups=size(facts, "mamba_ngroups"),
        state_size=size(facts, "mamba_d_state"),
        conv_kernel=size(facts, "mamba_d_conv"),
        act="silu",
        norm_eps=1e-5,
        dt_limit=(positive(facts, "time_step_min", 0.001), math.inf),
        bias=bias,
        out_bias=bias,
    )
    return checked(facts, mixer, inner)


def _attention(facts: ModelFacts) -> AttentionSpec:
    """Attention of a block; raises CheckpointError where its adapters would not fit."""
    hf, width = facts.hf_config, 2 * facts.hidden_size
    head_size = hf.get("head_dim") or width // facts.num_heads
    if hf.get(_ADAPTED) and facts.num_kv_heads * head_size != width:
        raise facts.error(
            f"{_ADAPTED} needs heads of keys that make up {width} features, not "
            f"{facts.num_kv_heads} of {head_size}"
        )
    rotary = replace(rotary_settings(facts), head_size=head_size)
    return AttentionSpec(
        num_heads=facts.num_heads,
        num_kv_heads=facts.num_kv_heads,
        head_size=head_size,
        scale=(head_size / 2) ** -0.5,
        rotary=rotary if hf.get("use_mem_rope") else None,
    )
