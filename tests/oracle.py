"""Ground truth from transformers: the demo model in float32, and greedy decoding with gaps.

The weights come from the demo's GGUF file by the gguf package's reader and dequantiser, and
q and k rows are put back in transformers' order here, independently of the loader under test.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import Any

import gguf
import numpy as np
import torch
from gguf.quants import dequantize
from transformers import LlamaConfig, LlamaForCausalLM

from vllm_lite.config.demo import fetch_demo

NUM_LAYERS, HIDDEN, HEADS, KV_HEADS, HEAD_SIZE = 30, 576, 9, 3, 64


def gguf_name(name: str, architecture: str, num_layers: int) -> str:
    """The name in a GGUF file of `architecture` of transformers' tensor `name`."""
    arch = next(key for key, value in gguf.MODEL_ARCH_NAMES.items() if value == architecture)
    found = gguf.get_tensor_name_map(arch, num_layers).get_name(name, (".weight", ".bias"))
    assert found is not None, name
    return found


def unpermute(rows: np.ndarray[Any, Any], head_size: int) -> np.ndarray[Any, Any]:
    """Undo llama.cpp's order of rotary rows: row 2i of a head goes to i, 2i + 1 to i + half."""
    half = head_size // 2
    source = np.arange(rows.shape[0])
    within = source % head_size
    target = source - within + np.where(within % 2 == 0, within // 2, half + within // 2)
    result = np.empty_like(rows)
    result[target] = rows
    return result


def gguf_state_dict(
    path: str, names: Iterable[str], head_size: int, *, permuted: bool = True
) -> dict[str, torch.Tensor]:
    """The weights `names` of transformers from a GGUF file, in float32 and transformers' order.

    A name that the file has no tensor for is left out.
    """
    reader = gguf.GGUFReader(path)
    architecture = reader.get_field("general.architecture").contents()
    num_layers = reader.get_field(f"{architecture}.block_count").contents()
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    state = {}
    for name in names:
        tensor = tensors.get(gguf_name(name, architecture, num_layers))
        if tensor is None:
            continue
        values = np.array(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
        if permuted and name.split(".")[-2] in ("q_proj", "k_proj"):
            values = unpermute(values, head_size)
        state[name] = torch.from_numpy(values)
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
    state = gguf_state_dict(str(fetch_demo()), model.state_dict(), HEAD_SIZE)
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
