"""State-space layers, alone and beside attention."""

from __future__ import annotations

from vllm_lite.config.families.architecture import row

ROWS = (
    row(
        "Mamba2ForCausalLM",
        "mamba2",
        aliases={"num_heads": "num_attention_heads"},
        reads="n_groups state_size conv_kernel expand use_bias use_conv_bias "
        "layer_norm_epsilon time_step_limit",
        # What steps of time were drawn from, and how others cut and round what they compute.
        harmless="time_step_min time_step_max time_step_floor time_step_rank chunk_size "
        "residual_in_fp32 rms_norm norm_before_gate",
        mixer="state",
    ),
)
