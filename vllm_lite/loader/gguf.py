"""Tensors of a GGUF file under Hugging Face's names: kept rows where a slot takes them, or values.

Owns GGUF's tensor names and the order of rows that its converter gives Llama's queries and
keys. The file's layout is config/gguf_header.py's, the number formats are the kernels'.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import torch
from torch import Tensor

from vllm_lite.config.facts import ModelFacts
from vllm_lite.config.gguf_header import GGML_TYPES, GGMLType, GGUFTensor, read_gguf
from vllm_lite.errors import CheckpointError
from vllm_lite.kernels.dispatch import ops
from vllm_lite.kernels.quantized import QuantizedRows
from vllm_lite.layers.weights import WeightSlot

_GLOBAL_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
    "rope_freqs.weight": "model.rotary_emb.frequency_factors",
}
_BLOCK_NAMES = {
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
_BLOCK = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")
# Files of these architectures hold rotated rows pairwise interleaved.
_INTERLEAVED = {"llama", "mistral"}


@dataclass(frozen=True, slots=True)
class GGUFCheckpointTensor:
    """One tensor of a mapped file; `interleaved_heads` > 0: its rows are interleaved."""

    name: str
    tensor: GGUFTensor
    # The whole file, mapped.
    data: Tensor
    interleaved_heads: int

    @property
    def shape(self) -> tuple[int, ...]:
        return self.tensor.shape

    @property
    def nbytes(self) -> int:
        return self.tensor.nbytes

    def fill(self, slot: WeightSlot) -> None:
        stored = self.data.narrow(0, self.tensor.offset, self.tensor.nbytes)
        kind = GGML_TYPES[self.tensor.ggml_type]
        if slot.keep is not None and kind.block_size > 1:
            slot.keep(self._part_of(stored.view(self.shape[0], -1), kind, slot))
            return
        full = ops().dequantize_gguf(stored, self.tensor.ggml_type, self.shape, slot.tensor.dtype)
        if self.interleaved_heads:
            full = _halves_from_pairs(full, self.interleaved_heads)
        slot.fill(full)

    def _part_of(self, rows: Tensor, kind: GGMLType, slot: WeightSlot) -> QuantizedRows:
        """This rank's part of the blocks `rows` [M, bytes of a row]."""
        if self.interleaved_heads:
            rows = _halves_from_pairs(rows, self.interleaved_heads)
        (first_row, first_input), (num_rows, num_inputs) = slot.starts, slot.tensor.shape
        if first_input % kind.block_size or num_inputs % kind.block_size:
            raise CheckpointError(
                f"the tensor {self.name!r} cannot be split: {num_inputs} inputs of a rank are not "
                f"whole {kind.name} blocks of {kind.block_size}; use --quantization dequantize"
            )
        start, size = (n // kind.block_size * kind.block_bytes for n in (first_input, num_inputs))
        part = rows[first_row : first_row + num_rows, start : start + size]
        return QuantizedRows(part, self.tensor.ggml_type, num_inputs)


def open_gguf(facts: ModelFacts) -> list[GGUFCheckpointTensor]:
    """The tensors of the file of `facts`, in file order; raises CheckpointError."""
    file = read_gguf(facts.path)
    interleaved = file.metadata.get("general.architecture") in _INTERLEAVED
    heads = {"q_proj": facts.num_heads, "k_proj": facts.num_kv_heads} if interleaved else {}
    # A private mapping: torch takes only memory that it might write to.
    data = torch.from_file(facts.path, shared=False, size=len(file.data), dtype=torch.uint8)
    tensors = []
    for tensor in sorted(file.tensors.values(), key=lambda tensor: tensor.offset):
        name = hugging_face_name(tensor.name)
        module = name.split(".")[-2] if "." in name else ""
        tensors.append(GGUFCheckpointTensor(name, tensor, data, heads.get(module, 0)))
    return tensors


def hugging_face_name(name: str) -> str:
    """The name in a Hugging Face checkpoint; an unknown one stays as it is."""
    block = _BLOCK.fullmatch(name)
    if block and block[2] in _BLOCK_NAMES:
        return f"model.layers.{block[1]}.{_BLOCK_NAMES[block[2]]}.{block[3]}"
    return _GLOBAL_NAMES.get(name, name)


def _halves_from_pairs(rows: Tensor, num_heads: int) -> Tensor:
    """Rows of each head from (0, h, 1, h + 1, ...) to (0, 1, ..., h, h + 1, ...); a view if it can.

    llama.cpp rotates neighbours, transformers an element with the one half a head away.
    """
    pairs = rows.view(num_heads, -1, 2, *rows.shape[1:])
    return pairs.transpose(1, 2).reshape(rows.shape)
