"""BitNet b1.58: Llama with a further norm before the last linear layer of each block."""

from __future__ import annotations

from vllm_lite.config.facts import ModelFacts
from vllm_lite.distributed.groups import tp_size
from vllm_lite.errors import CheckpointError
from vllm_lite.layers.linear import RowParallelLinear
from vllm_lite.layers.mlp import GatedMLP
from vllm_lite.layers.norm import Norm, make_norm
from vllm_lite.models.decoder import DecoderForCausalLM, DecoderLayer
from vllm_lite.models.options import BuildOptions
from vllm_lite.models.spec import DecoderSpec, biased_spec, size
from vllm_lite.quantization.storage import StoringKernel


class BitNetForCausalLM(DecoderForCausalLM):
    """Ma et al., 2025; activations are not rounded to the model's 8 bits."""

    def __init__(self, facts: ModelFacts, options: BuildOptions) -> None:
        super().__init__(facts, options)
        if tp_size() > 1:
            raise CheckpointError(
                "tensor parallelism does not divide BitNet, whose norms span all heads; "
                "use --tensor-parallel-size 1"
            )
        norm, dtype = self.spec(facts).norm, options.dtype
        width = facts.num_heads * facts.head_size
        for layer in self.model.layers:
            assert isinstance(layer, DecoderLayer)
            attention, mlp = layer.self_attn, layer.mlp
            assert isinstance(mlp, GatedMLP)
            attention.attn_sub_norm = make_norm(norm, width, dtype)
            mlp.ffn_sub_norm = make_norm(norm, size(facts, "intermediate_size"), dtype)
            _norm_inputs(attention.o_proj, attention.attn_sub_norm)
            _norm_inputs(mlp.down_proj, mlp.ffn_sub_norm)

    @staticmethod
    def spec(facts: ModelFacts) -> DecoderSpec:
        return biased_spec(facts)


def _norm_inputs(linear: RowParallelLinear, norm: Norm) -> None:
    """Let `linear`, once loaded, normalise its inputs, in place."""
    finish = linear.process_weights_after_loading

    def process_weights_after_loading() -> None:
        finish()
        product = linear.kernel
        stored = getattr(product, "stored", ())
        linear.kernel = StoringKernel(lambda x: product(norm.forward(x, out=x)), stored)

    linear.process_weights_after_loading = process_weights_after_loading  # type: ignore[method-assign]
