"""DeciLM and Nemotron's searched models: Llama whose layers differ in key-value heads and width.

A layer may lack its attention or its MLP.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from vllm_lite.config.facts import ModelFacts
from vllm_lite.loader.weight_rules import Rule, interleaved_pairs
from vllm_lite.models.decoder import DecoderLayer
from vllm_lite.models.llama import LlamaForCausalLM, gguf_pairs
from vllm_lite.models.options import BuildOptions
from vllm_lite.models.spec import AttentionSpec, DecoderSpec, LayerSpec, MLPSpec

_KNOWN = {
    "attention": {"no_op", "n_heads_in_group"},
    "ffn": {"no_op", "ffn_mult", "intermediate_size", "hidden_act", "gated"},
}


class DeciLMForCausalLM(LlamaForCausalLM):
    """Layers as block_configs or num_key_value_heads_per_layer describe them."""

    def __init__(self, facts: ModelFacts, options: BuildOptions) -> None:
        super().__init__(facts, options)
        for layer in self.model.layers:
            assert isinstance(layer, DecoderLayer)
            if not hasattr(layer, "self_attn"):
                # Its one norm has the name of an MLP's.
                layer.post_attention_layernorm = layer.input_layernorm
                del layer.input_layernorm

    @staticmethod
    def spec(facts: ModelFacts) -> DecoderSpec:
        hf = facts.hf_config
        blocks, heads = hf.get("block_configs"), hf.get("num_key_value_heads_per_layer")
        if blocks is None and heads is None:
            return LlamaForCausalLM.spec(facts)
        # Where each layer has its own, the file has none for all.
        width = hf.get("intermediate_size") or facts.hidden_size
        usual = replace(facts, hf_config={**hf, "intermediate_size": width})
        spec = LlamaForCausalLM.spec(usual)
        given = heads if blocks is None else blocks
        if not isinstance(given, list) or len(given) != facts.num_layers:
            raise facts.error(
                f"its configuration describes not each of its {facts.num_layers} layers by "
                "block_configs or num_key_value_heads_per_layer"
            )
        make = _with_heads if blocks is None else _with_block
        layers = (make(facts, old, it) for old, it in zip(spec.layers, given, strict=True))
        return replace(spec, layers=tuple(layers))

    @staticmethod
    def weight_rules(facts: ModelFacts) -> Sequence[Rule]:
        if facts.format != "gguf":
            return ()
        mixers = [layer.mixer for layer in DeciLMForCausalLM.spec(facts).layers]
        keys = [
            replace(
                interleaved_pairs(
                    f"blk.{i}.attn_k",
                    "model.layers.*.self_attn.k_proj",
                    mixer.num_kv_heads,
                    facts.head_size,
                ),
                is_alternative=True,
            )
            for i, mixer in enumerate(mixers)
            if isinstance(mixer, AttentionSpec)
        ]
        return [*gguf_pairs(facts), *keys]


def _with_heads(facts: ModelFacts, layer: LayerSpec, count: Any) -> LayerSpec:
    if not isinstance(count, int) or count < 1 or facts.num_heads % count:
        raise facts.error(
            f"num_attention_heads {facts.num_heads} cannot share {count!r} key-value heads, as its "
            "configuration says of a layer"
        )
    assert isinstance(layer.mixer, AttentionSpec)
    return replace(layer, mixer=replace(layer.mixer, num_kv_heads=count))


def _with_block(facts: ModelFacts, layer: LayerSpec, block: Any) -> LayerSpec:
    attention, ffn = (_part(facts, block, name) for name in ("attention", "ffn"))
    if attention.get("no_op") and ffn.get("no_op"):
        raise facts.error(
            "block_configs has a layer without attention and MLP, which is not supported"
        )
    if attention.get("no_op"):
        layer = replace(layer, mixer=None)
    else:
        shared: Any = attention.get("n_heads_in_group")
        is_whole = isinstance(shared, int) and shared > 0 and facts.num_heads % shared == 0
        layer = _with_heads(facts, layer, facts.num_heads // shared if is_whole else shared)
    if ffn.get("no_op"):
        return replace(layer, ffn=None)
    assert isinstance(layer.ffn, MLPSpec)
    width = ffn.get("intermediate_size") or _width(facts, ffn.get("ffn_mult"))
    if not isinstance(width, int) or width < 1:
        raise facts.error(f"a layer's intermediate_size is {width!r} in block_configs")
    act = ffn.get("hidden_act") or layer.ffn.act
    is_gated = ffn.get("gated") is not False
    return replace(
        layer, ffn=replace(layer.ffn, intermediate_size=width, act=act, is_gated=is_gated)
    )


def _part(facts: ModelFacts, block: Any, name: str) -> Mapping[str, Any]:
    part = block.get(name) if isinstance(block, dict) else None
    if not isinstance(part, dict):
        raise facts.error(f"block_configs has a layer without {name!r}")
    unknown = [key for key, value in part.items() if value and key not in _KNOWN[name]]
    if unknown:
        raise facts.error(
            f"block_configs asks for {unknown[0]!r} of a layer's {name}, which is not supported"
        )
    return part


def _width(facts: ModelFacts, factor: Any) -> int:
    """Two thirds of so many times the hidden size, rounded up to 256."""
    if not isinstance(factor, int | float) or not factor > 0:
        raise facts.error(f"block_configs has the ffn_mult {factor!r}")
    return -(-int(2 * factor * facts.hidden_size / 3) // 256) * 256
