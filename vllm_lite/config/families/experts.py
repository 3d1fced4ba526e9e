"""Mixtures of experts."""

from __future__ import annotations

from vllm_lite.config.families.architecture import row

_LOCAL = {"num_local_experts": "num_experts"}

ROWS = (
    row(
        "MixtralForCausalLM",
        "mixtral",
        aliases=_LOCAL,
        reads="num_experts num_experts_per_tok",
        harmless="router_jitter_noise",
        windows="every",
    ),
    row(
        "Qwen2MoeForCausalLM",
        "qwen2_moe",
        gguf=("qwen2moe",),
        aliases=_LOCAL,
        reads="num_experts num_experts_per_tok moe_intermediate_size decoder_sparse_step "
        "mlp_only_layers norm_topk_prob shared_expert_intermediate_size use_sliding_window "
        "max_window_layers",
        windows="switched",
    ),
    row(
        "Qwen3MoeForCausalLM",
        "qwen3_moe",
        gguf=("qwen3moe",),
        aliases=_LOCAL,
        reads="num_experts num_experts_per_tok moe_intermediate_size decoder_sparse_step "
        "mlp_only_layers norm_topk_prob use_sliding_window",
        harmless="max_window_layers",
        windows="every",
    ),
)
