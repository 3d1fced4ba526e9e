"""The feed-forward block that a spec describes: an MLP or a mixture of experts."""

from __future__ import annotations

from vllm_lite.errors import CheckpointError
from vllm_lite.kernels.reference.experts import ExpertForm
from vllm_lite.layers.activation import activation_name
from vllm_lite.layers.experts import Expert, ExpertShape, Router, SharedExpert, SparseMLP
from vllm_lite.layers.mlp import GatedMLP, PlainMLP
from vllm_lite.models.options import BuildOptions
from vllm_lite.models.spec import ExpertsSpec, MLPSpec


def make_mlp(
    spec: MLPSpec | ExpertsSpec, hidden_size: int, options: BuildOptions
) -> GatedMLP | PlainMLP | SparseMLP:
    if isinstance(spec, ExpertsSpec):
        return make_experts(spec, hidden_size, options)
    return _dense(spec, hidden_size, options)


def _dense(spec: MLPSpec, hidden_size: int, options: BuildOptions) -> GatedMLP | PlainMLP:
    kind, first = (GatedMLP, "gate_up_proj") if spec.is_gated else (PlainMLP, "up_proj")
    return kind(
        options.at(first).linear_method,
        options.at("down_proj").linear_method,
        hidden_size,
        spec.intermediate_size,
        spec.act,
        bias=spec.bias,
        down_bias=spec.down_bias,
    )


def make_experts(spec: ExpertsSpec, hidden_size: int, options: BuildOptions) -> SparseMLP:
    """The mixture that `spec` describes; raises CheckpointError where it has too few experts."""
    _check_routing(spec)
    gate = Router(
        options.at("gate").linear_method,
        hidden_size,
        spec.num_experts,
        bias=spec.router_bias,
        has_choice_bias=spec.has_choice_bias,
    )
    shape = ExpertShape(hidden_size, spec.intermediate_size, spec.is_gated, spec.bias)
    names = ("gate_up_proj" if spec.is_gated else "up_proj", "down_proj")
    experts = []
    for i in range(spec.num_experts):
        first, down = (options.at(f"experts.{i}.{name}").linear_method for name in names)
        experts.append(Expert(first, down, shape))
    form = ExpertForm(
        act=activation_name(spec.act),
        limit=spec.limit,
        shift=spec.shift,
        scales_inputs=spec.scales_inputs,
    )
    shared = _shared_expert(spec, hidden_size, options)
    return SparseMLP(gate, experts, spec.routing, form, shared)


def _shared_expert(
    spec: ExpertsSpec, hidden_size: int, options: BuildOptions
) -> SharedExpert | None:
    if spec.shared is None:
        return None
    mlp = _dense(spec.shared, hidden_size, options.at("shared_experts"))
    gate = None
    if spec.shared_is_gated:
        gate = Router(options.at("shared_expert_gate").linear_method, hidden_size, 1)
    return SharedExpert(mlp, gate, spec.shared_scale)


def _check_routing(spec: ExpertsSpec) -> None:
    routing, num_experts = spec.routing, spec.num_experts
    if routing.top_k > num_experts:
        raise CheckpointError(
            f"num_experts_per_tok asks for {routing.top_k} of {num_experts} experts for each token"
        )
    size, rest = divmod(num_experts, routing.num_groups)
    if rest or size < routing.best_of_group or routing.top_groups > routing.num_groups:
        raise CheckpointError(
            f"topk_group asks for {routing.top_groups} of {routing.num_groups} groups (n_group) of "
            f"{num_experts} experts"
        )
    if routing.top_k > routing.top_groups * size:
        raise CheckpointError(
            f"num_experts_per_tok asks for {routing.top_k} experts for each token of "
            f"{routing.top_groups} groups of {size}"
        )
