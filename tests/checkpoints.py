"""Descriptions of models on disk: a config.json or a GGUF header, with or without faults."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

LLAMA_CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 100,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "eos_token_id": 2,
    "bos_token_id": 1,
    "torch_dtype": "bfloat16",
}

LLAMA_GGUF: dict[str, Any] = {
    "general.architecture": "llama",
    "llama.block_count": 2,
    "llama.embedding_length": 64,
    "llama.feed_forward_length": 128,
    "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "llama.rope.freq_base": 10000.0,
    "llama.context_length": 512,
    "tokenizer.ggml.tokens": ["<s>", "</s>", "é", "b"],
    "tokenizer.ggml.scores": [0.5, 1.5, 2.5, 3.5],
    "tokenizer.ggml.add_bos_token": True,
    "tokenizer.ggml.bos_token_id": 0,
    "tokenizer.ggml.eos_token_id": 1,
}
LLAMA_TENSORS: dict[str, tuple[int, ...]] = {
    "token_embd.weight": (100, 64),
    "output_norm.weight": (64,),
}


def write_hf(folder: Path, *, generation: dict[str, Any] | None = None, **changes: Any) -> Path:
    """A Hugging Face directory without weights; a change of None drops the key."""
    folder.mkdir(parents=True, exist_ok=True)
    merged = {**LLAMA_CONFIG, **changes}
    kept = {key: value for key, value in merged.items() if value is not None}
    (folder / "config.json").write_text(json.dumps(kept))
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation))
    return folder


def _string(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def _value(value: Any) -> bytes:
    if isinstance(value, list):
        kind = struct.unpack("<I", _value(value[0])[:4])[0]
        body = b"".join(_value(item)[4:] for item in value)
        return struct.pack("<IIQ", 9, kind, len(value)) + body
    if isinstance(value, bool):
        return struct.pack("<I?", 7, value)
    if isinstance(value, int):
        return struct.pack("<II", 4, value)
    if isinstance(value, float):
        return struct.pack("<If", 6, value)
    return struct.pack("<I", 8) + _string(value)


def gguf_bytes(
    metadata: dict[str, Any] | None = None,
    tensors: dict[str, tuple[int, ...]] | None = None,
    *,
    ggml_type: int = 0,
    version: int = 3,
) -> bytes:
    """A GGUF file of zeros; `tensors` maps names to shapes in torch order, 4 bytes a value."""
    metadata = LLAMA_GGUF if metadata is None else metadata
    tensors = LLAMA_TENSORS if tensors is None else tensors
    out = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(metadata))
    for key, value in metadata.items():
        out += _string(key) + _value(value)
    offset = 0
    for name, shape in tensors.items():
        dims = tuple(reversed(shape))
        out += _string(name) + struct.pack(f"<I{len(dims)}Q", len(dims), *dims)
        out += struct.pack("<IQ", ggml_type, offset)
        size = 4
        for dim in shape:
            size *= dim
        offset += -(-size // 32) * 32
    return out + bytes(-len(out) % 32) + bytes(offset)


def write_gguf(path: Path, *args: Any, **kwargs: Any) -> Path:
    """`gguf_bytes` in a file."""
    path.write_bytes(gguf_bytes(*args, **kwargs))
    return path
