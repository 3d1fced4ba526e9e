"""The operations by the compiled CPU kernels: addresses and sizes go in, nothing is copied.

Python checks shapes, types and strides, C++ checks block and slot ids; neither trusts a caller with
memory. `reference` specifies each operation. A model's step can be recorded instead of run; see
`program`.
"""

from __future__ import annotations

from vllm_lite.kernels.cpu.attention import paged_attention
from vllm_lite.kernels.cpu.cache import reshape_and_cache
from vllm_lite.kernels.cpu.elementwise import (
    act_and_mul,
    activation,
    mix_rows,
    rotary_embedding,
    scaled_add,
    xielu,
)
from vllm_lite.kernels.cpu.encoder import encoder_attention, encoder_embedding, segment_sum
from vllm_lite.kernels.cpu.experts import experts_mlp, pack_experts, route_topk
from vllm_lite.kernels.cpu.gguf import dequantize_gguf
from vllm_lite.kernels.cpu.grouped import (
    grouped_linear,
    grouped_lookup,
    pack_grouped,
)
from vllm_lite.kernels.cpu.linear import (
    embedding,
    gated_linear,
    head_linear,
    linear,
    linear_argmax,
    pack_heads,
    pack_linear,
)
from vllm_lite.kernels.cpu.norm import (
    fused_add_layer_norm,
    fused_add_rms_norm,
    keep_outliers,
    layer_norm,
    match_rms,
    rms_norm,
)
from vllm_lite.kernels.cpu.quantized import (
    pack_quantized,
    quantized_linear,
    quantized_linear_argmax,
    quantized_lookup,
)
from vllm_lite.kernels.cpu.sampling import (
    apply_token_mask,
    greedy_tokens,
    penalize_tokens,
    sample_tokens,
    token_logprobs,
)
from vllm_lite.kernels.cpu.state import (
    causal_conv1d,
    channel_scan,
    delta_rule,
    gated_product,
    gated_recurrence,
    gated_rms_norm,
    selective_scan,
)
from vllm_lite.kernels.cpu.words import unpack_words
from vllm_lite.kernels.reference.counter_rng import uniforms
