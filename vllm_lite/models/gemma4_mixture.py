"""Gemma 4's mixtures: experts beside a layer's MLP, each with norms of their own."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from vllm_lite.config.facts import ModelFacts
from vllm_lite.kernels.dispatch import ops
from vllm_lite.kernels.reference.experts import Routing
from vllm_lite.layers.norm import make_norm
from vllm_lite.layers.weights import NamedSlot, WeightSlot
from vllm_lite.loader.weight_rules import AnyRule, renamed
from vllm_lite.models.ffn import make_experts
from vllm_lite.models.mixtures import expert_rules, expert_size, routed_experts
from vllm_lite.models.options import BuildOptions
from vllm_lite.models.spec import DecoderSpec, ExpertsSpec, size

_LAYER = "model.layers.*"
_MIXTURE = f"{_LAYER}.mixture"
_NORMS = {
    "pre_feedforward_layernorm_2": "input_norm",
    "post_feedforward_layernorm_1": "dense_norm",
    "post_feedforward_layernorm_2": "output_norm",
}
# The same in GGUF files; numbers of the mixture itself are named by gguf_layout.
_FILE_NAMES = {
    "pre_ffw_norm_2": "input_norm",
    "post_ffw_norm_1": "dense_norm",
    "post_ffw_norm_2": "output_norm",
    "ffn_gate_inp": "mlp.gate",
    "ffn_down_exps.*": "mlp.experts.*.down_proj",
    "mixture": "",
}


class Gemma4Mixture(nn.Module):
    """Experts that read the stream, chosen by its rows without the norm's weight."""

    def __init__(self, spec: ExpertsSpec, decoder: DecoderSpec, options: BuildOptions) -> None:
        super().__init__()
        width = decoder.hidden_size
        self.mlp = make_experts(spec, width, options.at("mlp"))
        self.input_norm, self.dense_norm, self.output_norm = (
            make_norm(decoder.norm, width, options.dtype) for _ in range(3)
        )
        # Of the router's rows, and of a choice's weight by its expert.
        self._scale = torch.empty(width, dtype=torch.float32)
        self._factors = torch.empty(spec.num_experts, dtype=torch.float32)
        self._routing, self._eps, self._ops = spec.routing, decoder.norm.eps, ops()

    def add_to(self, fed: Tensor, stream: Tensor) -> Tensor:
        """The MLP's output `fed` [T, N], which is overwritten, and that of the experts, summed."""
        read = self._ops.rms_norm(stream, self._scale, self._eps)
        logits = self.mlp.gate.kernel(read)
        weights, ids = self._ops.route_topk(logits, self._routing, None, self._factors)
        made = self.mlp.mix(self.input_norm.forward(stream), weights, ids)
        made = self.output_norm.forward(made, out=made)
        fed = self.dense_norm.forward(fed, out=fed)
        return self._ops.scaled_add(fed, made, out=fed)

    def weight_slots(self) -> Iterator[NamedSlot]:
        yield NamedSlot("", "scale", WeightSlot.whole(self._scale))
        yield NamedSlot("", "per_expert_scale", WeightSlot.whole(self._factors))

    def process_weights_after_loading(self) -> None:
        self._scale.mul_(len(self._scale) ** -0.5)


def mixture(facts: ModelFacts) -> ExpertsSpec | None:
    """The experts of each layer; None where there are none."""
    if not facts.hf_config.get("enable_moe_block"):
        return None
    return routed_experts(facts, Routing(top_k=size(facts, "num_experts_per_tok")))


def mixture_rules(facts: ModelFacts) -> list[AnyRule]:
    """The names of mixtures in checkpoints."""
    if not facts.hf_config.get("enable_moe_block"):
        return []
    names = {f"{_LAYER}.{old}": f"{_MIXTURE}.{new}" for old, new in _NORMS.items()}
    names |= {f"{_LAYER}.router": _MIXTURE, f"{_LAYER}.router.proj": f"{_MIXTURE}.mlp.gate"}
    names |= {f"blk.*.{old}": f"{_MIXTURE}.{new}".rstrip(".") for old, new in _FILE_NAMES.items()}
    return [*renamed(names), *expert_rules(expert_size(facts), _LAYER, f"{_MIXTURE}.mlp")]
