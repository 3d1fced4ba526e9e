"""Ground truth from transformers: the demo model in float32, and greedy decoding with gaps.

The weights come from the demo's GGUF file by the gguf package's reader and dequantiser, and
q and k rows are put back in transformers' order here, independently of the loader under test.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import gguf
import numpy as np
import torch
from gguf.quants import dequantize
from transformers import LlamaConfig, LlamaForCausalLM

from vllm_lite.config.demo import fetch_demo

NUM_LAYERS, HIDDEN, HEADS, KV_HEADS, HEAD_SIZE = 30, 576, 9, 3, 64

BLOCK_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
GLOBAL_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}


def unpermute(rows: np.ndarray[Any, Any], head_size: int) -> np.ndarray[Any, Any]:
    """Undo llama.cpp's order of rotary rows: row 2i of a head goes to i, 2i + 1 to i + half."""
    half = head_size // 2
    source = np.arange(rows.shape[0])
    within = source % head_size
    target = source - within + np.where(within % 2 == 0, within // 2, half + within // 2)
    result = np.empty_like(rows)
    result[target] = rows
    return result


def gguf_state_dict(path: str, head_size: int, *, permuted: bool = True) -> dict[str, torch.Tensor]:
    """All weights of a GGUF file in float32, named and ordered as transformers has them."""
    state = {}
    for tensor in gguf.GGUFReader(path).tensors:
        values = np.array(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
        stem, suffix = tensor.name.rsplit(".", 1)
        if stem.startswith("blk."):
            _, layer, part = stem.split(".")
            name = f"model.layers.{layer}.{BLOCK_NAMES[part]}"
            if permuted and part in ("attn_q", "attn_k"):
                values = unpermute(values, head_size)
        elif stem in GLOBAL_NAMES:
            name = GLOBAL_NAMES[stem]
        else:
            continue
        state[f"{name}.{suffix}"] = torch.from_numpy(values)
    return state


@functools.cache
def demo_hf_model() -> LlamaForCausalLM:
    """The demo model as transformers runs it, float32, eager attention."""
    config = LlamaConfig(
        vocab_size=49152,
        hidden_size=HIDDEN,
        intermediate_size=1536,
        num_hidden_layers=NUM_LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        max_position_embeddings=8192,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 100000.0},
        tie_word_embeddings=True,
        attn_implementation="eager",
    )
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    model = model.to_empty(device="cpu")
    state = gguf_state_dict(str(fetch_demo()), HEAD_SIZE)
    state["lm_head.weight"] = state["model.embed_tokens.weight"]
    model.load_state_dict(state, strict=True, assign=True)
    rotary = model.model.rotary_emb
    frequencies, _ = rotary.compute_default_rope_parameters(config)
    rotary.inv_freq = frequencies
    rotary.original_inv_freq = frequencies.clone()
    return model.eval()


@torch.inference_mode()
def greedy(
    model: LlamaForCausalLM, ids: Sequence[int], count: int
) -> tuple[list[int], list[float]]:
    """The `count` most likely next ids, one by one, and each step's gap between its top two."""
    output: list[int] = []
    gaps: list[float] = []
    step = torch.tensor([list(ids)])
    cache = None
    for _ in range(count):
        result = model(step, past_key_values=cache, use_cache=True, logits_to_keep=1)
        cache = result.past_key_values
        values, indices = result.logits[0, -1].topk(2)
        output.append(int(indices[0]))
        gaps.append(float(values[0] - values[1]))
        step = indices[:1].view(1, 1)
    return output, gaps
