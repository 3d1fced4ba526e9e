"""Mamba, FalconMamba and Mamba 2: a state-space mixer is all of a layer."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from torch import Tensor

from vllm_lite.config.facts import ModelFacts
from vllm_lite.layers.norm import NormSpec
from vllm_lite.layers.states.mamba1 import Mamba1Spec
from vllm_lite.layers.states.mamba2 import Mamba2Spec
from vllm_lite.loader.weight_rules import Rule, fused, renamed
from vllm_lite.models.decoder import DecoderForCausalLM
from vllm_lite.models.spec import DecoderSpec, LayerSpec, positive, size, spec_of

_NAMES = {
    "backbone.embeddings": "model.embed_tokens",
    "backbone.norm_f": "model.norm",
    "backbone.layers.*.norm": "model.layers.*.input_layernorm",
}


class MambaForCausalLM(DecoderForCausalLM):
    """Gu and Dao, 2024, as transformers stores it."""

    @staticmethod
    def spec(facts: ModelFacts) -> DecoderSpec:
        hf = facts.hf_config
        eps = positive(facts, "layer_norm_epsilon", 1e-5)
        normed = "mixer_rms_eps" in hf
        mixer = Mamba1Spec(
            num_channels=int(facts.hidden_size * positive(facts, "expand", 2)),
            state_size=size(facts, "state_size"),
            conv_kernel=size(facts, "conv_kernel"),
            dt_rank=step_rank(facts, "time_step_rank"),
            act=hf["hidden_act"],
            inner_norm=NormSpec(eps=positive(facts, "mixer_rms_eps", 1e-6)) if normed else None,
            norm_weights="ones",
            conv_bias=bool(hf["use_conv_bias"]),
            bias=bool(hf["use_bias"]),
        )
        layer = LayerSpec(mixer=mixer, ffn=None)
        return spec_of(facts, NormSpec(eps=eps), [layer] * facts.num_layers)

    @staticmethod
    def weight_rules(facts: ModelFacts) -> Sequence[Rule]:
        old, new = "backbone.layers.*", "model.layers.*"
        names = {**_NAMES, "backbone.embedding": "model.embed_tokens"}
        width = int(facts.hidden_size * positive(facts, "expand", 2))
        return *renamed(names), *mamba1_rules(f"{old}.mixer", f"{new}.mixer", width)


def mamba1_rules(old: str, new: str, width: int) -> list[Rule]:
    """The rules of a Mamba 1 mixer of so many channels, as its authors named its parts."""
    names = {"blk.*.ssm_conv1d": f"{new}.x_conv", "blk.*.ssm_dt": f"{new}.step_proj"}
    names |= {old: new, f"{old}.out_proj": f"{new}.out_proj", f"{old}.conv1d": f"{new}.x_conv"}
    names |= {f"{old}.x_proj": f"{new}.select_proj", f"{old}.dt_proj": f"{new}.step_proj"}
    names |= {f"{old}.{part}_layernorm": f"{new}.{part}_layernorm" for part in ("dt", "b", "c")}
    halves = {"x_proj": width, "z_proj": width}
    sources = ("blk.*.ssm_in", f"{old}.in_proj")
    return [*renamed(names), *(fused(source, new, halves) for source in sources)]


def step_rank(facts: ModelFacts, key: str) -> int:
    """The rank of a projection to steps: `key`, or a sixteenth of the hidden size."""
    if facts.hf_config.get(key) == "auto":
        return math.ceil(facts.hidden_size / 16)
    return size(facts, key)


class Mamba2ForCausalLM(DecoderForCausalLM):
    """Dao and Gu, 2024, as transformers stores it."""

    @staticmethod
    def spec(facts: ModelFacts) -> DecoderSpec:
        mixer = _mixer(facts)
        layer = LayerSpec(mixer=mixer, ffn=None)
        return spec_of(facts, NormSpec(eps=mixer.norm_eps), [layer] * facts.num_layers)

    @staticmethod
    def weight_rules(facts: ModelFacts) -> Sequence[Rule]:
        old, new = "backbone.layers.*", "model.layers.*"
        return *renamed(_NAMES), *mamba2_rules(f"{old}.mixer", f"{new}.mixer", _mixer(facts))


def mamba2_rules(
    old: str,
    new: str,
    sizes: Mamba2Spec,
    transforms: Mapping[str, Callable[[Tensor], Tensor]] | None = None,
) -> list[Rule]:
    """The rules of a Mamba 2 mixer, as its authors named its parts; `transforms` by our names."""
    inner, vectors = sizes.num_heads * sizes.head_size, sizes.num_groups * sizes.state_size
    conv = {"x_conv": inner, "b_conv": vectors, "c_conv": vectors}
    product = {"z_proj": inner, "x_proj": inner, "b_proj": vectors, "c_proj": vectors}
    names = {old: new, f"{old}.norm": f"{new}.norm", f"{old}.out_proj": f"{new}.out_proj"}
    steps = {"dt_proj": sizes.num_heads}
    return [
        fused("blk.*.ssm_conv1d", new, conv),
        fused("blk.*.ssm_in", new, {**product, **steps}),
        *renamed(names),
        fused(f"{old}.conv1d", new, conv),
        fused(f"{old}.in_proj", new, {**product, **steps}, transforms=transforms),
    ]


def _mixer(facts: ModelFacts) -> Mamba2Spec:
    hf = facts.hf_config
    mixer = Mamba2Spec(
        num_heads=facts.num_heads,
        head_size=facts.head_size,
        num_groups=size(facts, "n_groups"),
        state_size=size(facts, "state_size"),
        conv_kernel=size(facts, "conv_kernel"),
        act=hf["hidden_act"],
        norm_eps=positive(facts, "layer_norm_epsilon", 1e-5),
        dt_limit=step_limit(facts),
        conv_bias=bool(hf["use_conv_bias"]),
        bias=bool(hf["use_bias"]),
        out_bias=bool(hf["use_bias"]),
    )
    return checked(facts, mixer, int(facts.hidden_size * positive(facts, "expand", 2)))


def checked(facts: ModelFacts, mixer: Mamba2Spec, inner: int) -> Mamba2Spec:
    """`mixer` if its heads make up `inner` features; raises CheckpointError."""
    if mixer.num_heads % mixer.num_groups or mixer.num_heads * mixer.head_size != inner:
        raise facts.error(
            f"{mixer.num_heads} heads of {mixer.head_size} numbers (head_dim) in "
            f"{mixer.num_groups} groups do not make up {inner} features (hidden_size times expand)"
        )
    return mixer


def step_limit(facts: ModelFacts) -> tuple[float, float]:
    """The least and the largest step; transformers writes infinity as an object."""
    limits = facts.hf_config["time_step_limit"]
    try:
        least, most = (float(x["__float__"] if isinstance(x, dict) else x) for x in limits)
    except (KeyError, TypeError, ValueError):
        raise facts.error(
            f"time_step_limit is {limits!r} in its configuration, not two numbers"
        ) from None
    return least, most
