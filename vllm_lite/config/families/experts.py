"""Mixtures of experts."""

from __future__ import annotations

from vllm_lite.config.families.architecture import row

ROWS = (
    row(
        "Qwen3MoeForCausalLM",
        "qwen3_moe",
        gguf=("qwen3moe",),
        aliases={"num_local_experts": "num_experts"},
        reads="num_experts num_experts_per_tok moe_intermediate_size decoder_sparse_step "
        "mlp_only_layers norm_topk_prob use_sliding_window",
        harmless="max_window_layers",
        windows="every",
    ),
)
