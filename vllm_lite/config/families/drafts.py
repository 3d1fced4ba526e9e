"""Heads that draft for the model that they were trained for: no models by themselves."""

from __future__ import annotations

from vllm_lite.config.families.architecture import row

ROWS = (
    row(
        "EagleForCausalLM",
        "draft_head",
        like="LlamaForCausalLM",
        reads="add_para_norm",
    ),
    row(
        "Eagle3LlamaForCausalLM",
        "eagle3",
        like="LlamaForCausalLM",
        reads="draft_vocab_size target_hidden_size norm_before_residual eagle_config "
        "eagle_aux_hidden_state_layer_ids",
    ),
    row("MedusaModel", "medusa"),
    row("MultiTokenPredictor", "mtp"),
)
