"""Parts of families that mix layers of attention with layers of Mamba 2, and Bamba."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from vllm_lite.config.facts import ModelFacts
from vllm_lite.layers.state import StateSpec
from vllm_lite.layers.states.mamba2 import Mamba2Spec
from vllm_lite.loader.weight_rules import Rule, renamed
from vllm_lite.models.decoder import DecoderForCausalLM
from vllm_lite.models.mamba import checked, mamba2_rules, step_limit
from vllm_lite.models.mixtures import renamed_mlp
from vllm_lite.models.spec import DecoderSpec, biased_spec, positive, size, with_mixers

# Names of kinds of layers, old ones too.
KINDS = {
    "full_attention": "attention",
    "attention": "attention",
    "linear_attention": "state",
    "mamba": "state",
}


def hybrid_mamba2(facts: ModelFacts, eps: str = "rms_norm_eps") -> Mamba2Spec:
    """The Mamba 2 mixer of fields that begin with mamba_."""
    hf, num_heads = facts.hf_config, size(facts, "mamba_n_heads")
    inner = hf.get("mamba_d_ssm") or int(positive(facts, "mamba_expand", 2) * facts.hidden_size)
    head_size = hf.get("mamba_d_head", "auto")
    mixer = Mamba2Spec(
        num_heads=num_heads,
        head_size=inner // num_heads if head_size == "auto" else size(facts, "mamba_d_head"),
        num_groups=size(facts, "mamba_n_groups"),
        state_size=size(facts, "mamba_d_state"),
        conv_kernel=size(facts, "mamba_d_conv"),
        act=hf["hidden_act"],
        norm_eps=positive(facts, eps, 1e-5),
        dt_limit=step_limit(facts),
        conv_bias=bool(hf.get("mamba_conv_bias", True)),
        bias=bool(hf.get("mamba_proj_bias")),
        out_bias=bool(hf.get("projectors_bias", hf.get("mamba_proj_bias"))),
    )
    return checked(facts, mixer, inner)


def layer_kinds(
    facts: ModelFacts, names: Mapping[str, str] = KINDS, kinds: Sequence[str] | None = None
) -> list[str]:
    """The kind of each layer, by the `names` that layer_types, or `kinds`, may hold.

    Raises CheckpointError for another name, or another number of them than of layers.
    """
    kinds = facts.hf_config.get("layer_types") if kinds is None else kinds
    if not isinstance(kinds, list) or len(kinds) != facts.num_layers:
        raise facts.error(
            f"layer_types is {kinds!r} in its configuration, not one kind for each of "
            f"{facts.num_layers} layers"
        )
    for kind in kinds:
        if kind not in names:
            raise facts.error(f"layer_types has {kind!r}; supported are {', '.join(names)}")
    return [names[kind] for kind in kinds]


def with_states(spec: DecoderSpec, mixer: StateSpec, kinds: Iterable[str]) -> DecoderSpec:
    """`spec` with `mixer` in the layers of other kinds than attention."""
    layers = zip(spec.layers, kinds, strict=True)
    return with_mixers(spec, [x.mixer if kind == "attention" else mixer for x, kind in layers])


class BambaForCausalLM(DecoderForCausalLM):
    """IBM, 2024."""

    @staticmethod
    def spec(facts: ModelFacts) -> DecoderSpec:
        hf, mixer = facts.hf_config, hybrid_mamba2(facts)
        attending = hf.get("attn_layer_indices") or ()
        plain = biased_spec(facts, mlp_bias=bool(hf.get("mlp_bias")))
        kinds = ("attention" if i in attending else "state" for i in range(facts.num_layers))
        return with_states(plain, mixer, kinds)

    @staticmethod
    def weight_rules(facts: ModelFacts) -> Sequence[Rule]:
        layer = "model.layers.*"
        names = {
            "model.final_layernorm": "model.norm",
            f"{layer}.pre_ff_layernorm": f"{layer}.post_attention_layernorm",
        }
        return (
            *renamed(names),
            *renamed_mlp(f"{layer}.feed_forward", f"{layer}.mlp"),
            *mamba2_rules(f"{layer}.mamba", f"{layer}.mixer", hybrid_mamba2(facts)),
        )
