"""Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434), always by absorbed products.

What is cached of a token is a latent, from which every head's key and value are linear, and the
rotated part of a key, which all heads share. Instead of expanding latents, each head's query is
taken to the latents' space and what it attends to from there: to attention there is one key head,
whose first numbers are the value.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from vllm_lite.config.facts import ModelFacts
from vllm_lite.distributed.groups import Shard
from vllm_lite.kernels.dispatch import ops
from vllm_lite.kernels.reference.linear import PackedHeads
from vllm_lite.layers.attention import attention
from vllm_lite.layers.linear import ColumnParallelLinear, RowParallelLinear
from vllm_lite.layers.norm import make_norm
from vllm_lite.layers.rotary import RotaryTables, yarn_magnitude
from vllm_lite.layers.weights import WeightedLayer
from vllm_lite.models.options import BuildOptions
from vllm_lite.models.spec import DecoderSpec, LatentAttentionSpec, rotary_settings, size
from vllm_lite.quantization.method import LinearKernel, as_they_are


class LatentAttention(nn.Module, WeightedLayer):
    """Projections, absorbed products, rotation and attention of one layer."""

    # Of each head: the latents' space by its key's part, and its value by the latents'.
    to_latent: PackedHeads
    from_latent: PackedHeads

    def __init__(
        self,
        spec: LatentAttentionSpec,
        hidden_size: int,
        options: BuildOptions,
        tables: RotaryTables,
    ) -> None:
        super().__init__()
        heads = Shard.even(spec.num_heads, "attention heads").size
        self._spec = spec
        self._query_shape = (-1, heads, spec.key_size + spec.rotary_size)
        self._key_shape = (-1, 1, spec.rank + spec.rotary_size)
        self._width = heads * spec.value_size
        query_size = spec.num_heads * (spec.key_size + spec.rotary_size)
        if spec.query_rank is None:
            self.q_proj = self._columns("q_proj", hidden_size, query_size, options)
        else:
            at = options.at("q_a_proj")
            self.q_a_proj = at.whole_linear(hidden_size, spec.query_rank, bias=spec.bias)
            self.q_a_layernorm = make_norm(spec.norm, spec.query_rank, options.dtype)
            self.q_b_proj = self._columns("q_b_proj", spec.query_rank, query_size, options)
        self.kv_a_proj_with_mqa = options.at("kv_a_proj_with_mqa").whole_linear(
            hidden_size, spec.rank + spec.rotary_size, bias=spec.bias
        )
        self.kv_a_layernorm = make_norm(spec.norm, spec.rank, options.dtype)
        self.kv_b_proj = self._columns(
            "kv_b_proj", spec.rank, spec.num_heads * (spec.key_size + spec.value_size), options
        )
        self.o_proj = RowParallelLinear(
            options.at("o_proj").linear_method,
            spec.num_heads * spec.value_size,
            hidden_size,
            bias=spec.bias,
        )
        self.attn = attention(spec.scale, has_value_size=True)
        self._rotate = None if spec.rotary is None else tables.of(spec.rotary).forward
        self._ops = ops()
        # Its product is the weight itself, however that is stored.
        self._identity = torch.eye(spec.rank, dtype=options.dtype)

    @staticmethod
    def _columns(
        name: str, inputs: int, outputs: int, options: BuildOptions
    ) -> ColumnParallelLinear:
        """A layer whose outputs are divided by heads."""
        return ColumnParallelLinear(options.at(name).linear_method, inputs, outputs)

    @property
    def first(self) -> LinearKernel:
        """Return x itself: several products read the same rows."""
        return as_they_are

    def forward(self, positions: Tensor, x: Tensor) -> Tensor:
        """Positions [T] and normalised hidden states [T, N] -> [T, N]."""
        spec = self._spec
        latent = self.kv_a_proj_with_mqa.kernel(x)
        value = latent[:, : spec.rank]
        self.kv_a_layernorm.forward(value, out=value)
        key, query = latent.view(self._key_shape), self._query(x)
        if self._rotate is not None:
            self._rotate(positions, query[..., spec.key_size :], key[..., spec.rank :])
        mixed = self.attn.forward(
            self._ops.head_linear(query, self.to_latent), key, key[..., : spec.rank]
        )
        values = self._ops.head_linear(mixed, self.from_latent)
        return self.o_proj.kernel(values.view(-1, self._width))

    def _query(self, x: Tensor) -> Tensor:
        if self._spec.query_rank is None:
            return self.q_proj.kernel(x).view(self._query_shape)
        latent = self.q_a_layernorm.forward(self.q_a_proj.kernel(x))
        return self.q_b_proj.kernel(latent).view(self._query_shape)

    def process_weights_after_loading(self) -> None:
        """Divide the expansion of latents by heads, into keys' and values' parts."""
        spec = self._spec
        expansion = self.kv_b_proj.kernel(self._identity).view(spec.rank, self._query_shape[1], -1)
        keys, values = expansion.split_with_sizes([spec.key_size, spec.value_size], 2)
        self.to_latent = self._ops.pack_heads(keys.transpose(0, 1))
        self.from_latent = self._ops.pack_heads(values.permute(1, 2, 0).contiguous())
        del self.kv_b_proj, self._identity


def with_latents(
    spec: DecoderSpec, facts: ModelFacts, *, is_interleaved: bool = False, is_rotated: bool = True
) -> DecoderSpec:
    """`spec` with latent attention in all layers, of the sizes that `facts` state."""
    hf, rotary = facts.hf_config, rotary_settings(facts)
    key_size, rotary_size = size(facts, "qk_nope_head_dim"), size(facts, "qk_rope_head_dim")
    has_value_size = hf.get("v_head_dim") is not None
    scale = (key_size + rotary_size) ** -0.5
    if rotary.parameters["rope_type"] != "default" and rotary.number("mscale_all_dim", 0):
        # Scores of stretched positions are sharpened (YaRN, arXiv:2309.00071).
        scale *= yarn_magnitude(rotary.number("factor"), rotary.number("mscale_all_dim")) ** 2
    mixer = LatentAttentionSpec(
        num_heads=facts.num_heads,
        rank=size(facts, "kv_lora_rank"),
        query_rank=None if hf.get("q_lora_rank") is None else size(facts, "q_lora_rank"),
        key_size=key_size,
        rotary_size=rotary_size,
        value_size=size(facts, "v_head_dim")
        if has_value_size
        else facts.hidden_size // facts.num_heads,
        scale=scale,
        rotary=replace(rotary, head_size=rotary_size, is_interleaved=is_interleaved)
        if is_rotated
        else None,
        # These programs leave it at their norm's own, whatever the other norms have.
        norm=replace(spec.norm, eps=1e-6),
        bias=bool(hf.get("attention_bias")),
    )
    return replace(spec, layers=tuple(replace(layer, mixer=mixer) for layer in spec.layers))
