"""Write the demo model as a Hugging Face directory (bf16 safetensors), for engines without GGUF.

    python benchmarks/export_demo_checkpoint.py OUT_DIR

The weights are the dequantised Q4_1 ones, so that every engine computes the same model.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import torch
from gguf import GGUFReader
from gguf.quants import dequantize
from safetensors.torch import save_file

from vllm_lite.config.checkpoints.gguf_header import read_gguf
from vllm_lite.config.engine_args import EngineArgs
from vllm_lite.tokenizer.gguf_tokenizer import tokenizer_from_gguf

NAMES = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def checkpoint_name(name: str) -> str:
    """`blk.3.attn_q.weight` -> `model.layers.3.self_attn.q_proj.weight`."""
    if name.startswith("blk."):
        _, layer, kind, _ = name.split(".")
        return f"model.layers.{layer}.{NAMES[kind]}.weight"
    return {
        "token_embd.weight": "model.embed_tokens.weight",
        "output_norm.weight": "model.norm.weight",
        "output.weight": "lm_head.weight",
    }[name]


def split_halves(weight: np.ndarray, num_heads: int) -> np.ndarray:
    """Undo GGUF's interleaved rotary order of q and k rows."""
    rows, columns = weight.shape
    per_head = weight.reshape(num_heads, rows // num_heads // 2, 2, columns)
    return per_head.swapaxes(1, 2).reshape(rows, columns)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out_dir", type=Path)
    out: Path = parser.parse_args().out_dir
    out.mkdir(parents=True, exist_ok=True)

    config = EngineArgs(model="demo").create_engine_config()
    facts = config.facts
    tensors = {}
    for tensor in GGUFReader(facts.path).tensors:
        name = checkpoint_name(tensor.name)
        weight = dequantize(tensor.data, tensor.tensor_type)
        if "q_proj" in name:
            weight = split_halves(weight, facts.num_heads)
        elif "k_proj" in name:
            weight = split_halves(weight, facts.num_kv_heads)
        tensors[name] = torch.from_numpy(weight.copy()).to(torch.bfloat16)
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})

    hf_config = {
        **facts.hf_config,
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "torch_dtype": "bfloat16",
    }
    (out / "config.json").write_text(json.dumps(hf_config, indent=1))
    parts = tokenizer_from_gguf(read_gguf(facts.path).metadata)
    parts.backend.save(str(out / "tokenizer.json"))
    names = {"tokenizer_class": "PreTrainedTokenizerFast", **parts.special_tokens}
    names["chat_template"] = parts.chat_templates.get("default")
    (out / "tokenizer_config.json").write_text(json.dumps(names, indent=1))
    print(f"{len(tensors)} tensors written to {out}")


if __name__ == "__main__":
    main()
