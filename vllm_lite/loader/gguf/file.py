"""Tensors of a GGUF file, quantized rows or floating-point values as a slot takes them.

Owns the names that llama.cpp gives to the layers of a Llama-shaped decoder; the file's layout is
config/checkpoints/gguf_header.py's, the number formats are the kernels'.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from vllm_lite.config.checkpoints.gguf_header import (
    GGML_TYPES,
    GGMLType,
    GGUFFile,
    GGUFTensor,
    read_gguf,
)
from vllm_lite.config.facts import ModelFacts
from vllm_lite.errors import CheckpointError
from vllm_lite.kernels.dispatch import ops
from vllm_lite.kernels.reference.quantized import QuantizedRows, plain_rows
from vllm_lite.layers.weights import WeightSlot
from vllm_lite.loader.gguf.latents import join_latents
from vllm_lite.loader.gguf.layout import laid_out
from vllm_lite.loader.tensors import CheckpointTensor
from vllm_lite.loader.weight_rules import (
    Alias,
    AnyRule,
    Part,
    Rule,
    WeightRules,
    fused,
    log_of_negative,
    renamed,
)

_BLOCK_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    # After the sums, in encoders.
    "attn_output_norm": "post_attention_layernorm",
    "layer_output_norm": "ffn_output_norm",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_sub_norm": "self_attn.attn_sub_norm",
    "attn_q_a": "self_attn.q_a_proj",
    "attn_q_a_norm": "self_attn.q_a_layernorm",
    "attn_q_b": "self_attn.q_b_proj",
    "attn_kv_a_mqa": "self_attn.kv_a_proj_with_mqa",
    "attn_kv_a_norm": "self_attn.kv_a_layernorm",
    "attn_kv_b": "self_attn.kv_b_proj",
    "post_attention_norm": "mixer_output_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "ffn_sub_norm": "mlp.ffn_sub_norm",
    "post_ffw_norm": "ffn_output_norm",
    "ffn_gate_inp": "mlp.gate",
    "inp_gate": "own_input.gate",
    "proj": "own_input.projection",
    "post_norm": "own_input.norm",
    "altup_correct_coef": "altup.correction_coefs",
    "altup_predict_coef": "altup.prediction_coefs",
    "altup_router": "altup.modality_router",
    "altup_router_norm": "altup.router_norm",
    "laurel_l": "laurel.linear_left",
    "laurel_r": "laurel.linear_right",
    "laurel_post_norm": "laurel.post_laurel_norm",
    "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
    "ffn_gate_shexp": "mlp.shared_experts.gate_proj",
    "ffn_up_shexp": "mlp.shared_experts.up_proj",
    "ffn_down_shexp": "mlp.shared_experts.down_proj",
    "exp_probs_b": "mlp.gate",
    "attn_sinks": "self_attn",
    "ssm_d": "mixer",
    "ssm_dt": "mixer",
    "ssm_norm": "mixer.norm",
    "ssm_out": "mixer.out_proj",
    "ssm_x": "mixer.select_proj",
    **{f"ssm_{part}_norm": f"mixer.{part}_layernorm" for part in ("dt", "b", "c")},
    # Numbered by gguf_layout.
    "ffn_gate_exps.*": "mlp.experts.*.gate_proj",
    "ffn_up_exps.*": "mlp.experts.*.up_proj",
    "ffn_down_exps.*": "mlp.experts.*.down_proj",
}
_NAMES = {
    "token_embd": "model.embed_tokens",
    "token_embd_norm": "model.embed_norm",
    "position_embd": "model.embed_positions",
    "token_types": "model.embed_types",
    "output_norm": "model.norm",
    "output": "lm_head",
    "per_layer_token_embd": "model.own_inputs.table",
    "per_layer_model_proj": "model.own_inputs.projection",
    "per_layer_proj_norm": "model.own_inputs.norm",
    # Numbered by gguf_layout.
    "altup_proj.*": "model.altup_projections.*",
    "altup_unembd_proj.*": "model.altup_unembed_projections.*",
    **{f"blk.*.{name}": f"model.layers.*.{own}" for name, own in _BLOCK_NAMES.items()},
}
# Heads of classes.
_CLASSES = {
    "BertForSequenceClassification": {
        "cls": "heads.bert.pooler.dense",
        "cls.output": "heads.classifier",
    },
    "ModernBertForSequenceClassification": {
        "cls": "heads.head.dense",
        "cls.norm": "heads.head.norm",
        "cls.output": "heads.classifier",
    },
}
# Types whose blocks layers compute with; others are expanded.
_KEPT = {kind.name for kind in GGML_TYPES.values() if kind.block_size > 1}
# Where their blocks have a half float, unless first, and those where a second follows.
_SCALES_AT = {"Q2_K": 80, "Q3_K": 108, "Q6_K": 208, "TQ1_0": 52, "TQ2_0": 64}
_WITH_MINIMUMS = ("Q4_1", "Q5_1", "Q2_K", "Q4_K", "Q5_K")
_UNCHECKED = ("IQ1_M", "NVFP4", "Q8_K")  # have scales of other kinds
_PLAIN = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}
# Numbers by layer that the metadata hold, to the models' names.
_NUMBERS = {f"xielu.{name}": f"mlp.act_fn.{name}" for name in ("alpha_p", "alpha_n", "beta", "eps")}


@dataclass(frozen=True, slots=True)
class GGUFCheckpointTensor:
    """One tensor of a mapped file."""

    name: str
    tensor: GGUFTensor
    # The whole file of the tensor, mapped.
    data: Tensor

    @property
    def path(self) -> Path:
        return Path(self.tensor.path)

    @property
    def shown(self) -> str:
        return f"{self.path}: the tensor {self.tensor.name!r}"

    @property
    def shape(self) -> tuple[int, ...]:
        return self.tensor.shape

    @property
    def nbytes(self) -> int:
        return self.tensor.nbytes

    def fill(self, slot: WeightSlot, part: Part) -> None:
        kind = GGML_TYPES[self.tensor.ggml_type]
        rows, *others = part.region(slot)
        if slot.keep is not None and kind.name in _KEPT:
            taken: Tensor | None = self._rows(rows)
            if part.inputs is not None:
                taken = _reordered(self._rows(rows), part.inputs, kind)
            if taken is not None:
                kept = self._kept(taken, kind, slot)
                if not _has_sound_scales(kept.blocks, kind):
                    raise CheckpointError(
                        f"{self.shown} holds scales that are not finite; fetch the weights again"
                    )
                slot.keep(kept)
                return
        values = part.values(self.values(slot.tensor.dtype, rows)[(slice(None), *others)])
        if slot.keep is None:
            slot.write(values)
        else:
            slot.keep(plain_rows(values.expand_as(slot.tensor)))

    def _rows(self, rows: slice | Tensor) -> Tensor:
        stored = self.data.narrow(0, self.tensor.offset, self.tensor.nbytes)
        return stored.view(self.shape[0], -1)[rows]

    def values(self, dtype: torch.dtype, rows: slice | Tensor = slice(None)) -> Tensor:
        """The numbers of all or some rows; those of the file's own type where they lie there."""
        taken = self._rows(rows)
        shape = (len(taken), *self.shape[1:])
        if GGML_TYPES[self.tensor.ggml_type].name == _PLAIN.get(dtype):
            return taken.view(dtype).view(shape)
        return ops().dequantize_gguf(taken.reshape(-1), self.tensor.ggml_type, shape, dtype)

    def _kept(self, rows: Tensor, kind: GGMLType, slot: WeightSlot) -> QuantizedRows:
        """This rank's inputs of the blocks `rows` [M, bytes of a row]."""
        first_input, num_inputs = slot.starts[1], slot.tensor.shape[1]
        if first_input % kind.block_size or num_inputs % kind.block_size:
            raise CheckpointError(
                f"the tensor {self.name!r} cannot be split: {num_inputs} inputs of a rank are not "
                f"whole {kind.name} blocks of {kind.block_size}; use --quantization dequantize"
            )
        start, size = (n // kind.block_size * kind.block_bytes for n in (first_input, num_inputs))
        return QuantizedRows(rows[:, start : start + size], self.tensor.ggml_type, num_inputs)


def _has_sound_scales(rows: Tensor, kind: GGMLType) -> bool:
    """Whether the scales of blocks [M, bytes of a row] are finite, as far as that is cheap."""
    blocks = rows.view(len(rows), -1, kind.block_bytes)
    if kind.name == "MXFP4":  # has powers of two
        return int(blocks[..., 0].amax()) < 255
    if kind.name in _UNCHECKED:
        return True
    start, count = _SCALES_AT.get(kind.name, 0), 2 if kind.name in _WITH_MINIMUMS else 1
    low, high = blocks[..., start : start + 2 * count].view(torch.float16).aminmax()
    return math.isfinite(float(high) - float(low))


def _reordered(rows: Tensor, inputs: Tensor, kind: GGMLType) -> Tensor | None:
    """The blocks `rows` in the order of `inputs`; None where that would cut a block."""
    runs = inputs.view(-1, kind.block_size) if len(inputs) % kind.block_size == 0 else None
    if runs is None or not (runs == runs[:, :1] + torch.arange(kind.block_size)).all():
        return None
    if (runs[:, 0] % kind.block_size).any():
        return None
    blocks = rows.view(len(rows), -1, kind.block_bytes)
    return blocks[:, runs[:, 0] // kind.block_size].flatten(1)


def gguf_rules(facts: ModelFacts, own: Iterable[AnyRule]) -> list[AnyRule]:
    """The names of files of most architectures, and those rules of a family that are of files.

    Queries, keys and values may be one layer.
    """
    query, key = (count * facts.head_size for count in (facts.num_heads, facts.num_kv_heads))
    sizes = {"q_proj": query, "k_proj": key, "v_proj": key}
    return [
        *renamed({**_NAMES, **_CLASSES.get(facts.architecture, {})}),
        *renamed({"blk.*.ssm_a": "model.layers.*.mixer"}, transform=log_of_negative),
        replace(fused("blk.*.attn_qkv", "model.layers.*.self_attn", sizes), is_alternative=True),
        # Called weights, and filling slots of other names.
        Alias("blk.*.layer_output_scale.weight", "model.layers.*.layer_scalar"),
        Alias("blk.*.altup_correct_scale.weight", "model.layers.*.altup.correct_output_scale"),
        Alias("rope_freqs.weight", "model.rotary_emb.0.frequency_factors")
        if facts.has_rope_freqs
        else Rule("rope_freqs"),
        # Read with the header.
        *(Rule(f"rope_factors_{length}") for length in ("short", "long")),
        *(rule for rule in own if rule.source.startswith(("blk.", "token_embd"))),
    ]


def open_gguf(path: str, rules: WeightRules) -> list[CheckpointTensor]:
    """The tensors of the file at `path`, in file order; raises CheckpointError."""
    file = read_gguf(path)
    # Private mappings: torch takes only memory that it might write to.
    data = {
        path: torch.from_file(path, shared=False, size=len(view), dtype=torch.uint8)
        for path, view in file.data.items()
    }
    return [
        *join_latents(
            GGUFCheckpointTensor(rules.name_of(t.name), t, data[t.path]) for t in laid_out(file)
        ),
        *_numbers(file),
    ]


def _numbers(file: GGUFFile) -> Iterator[GGUFCheckpointTensor]:
    """The metadata's numbers as tensors of one element."""
    for key, own in _NUMBERS.items():
        values = torch.tensor(list(file.metadata.get(key, ())), dtype=torch.float32)
        for i in range(len(values)):
            name = f"model.layers.{i}.{own}"
            yield GGUFCheckpointTensor(
                name, GGUFTensor(name, (1,), 0, 4 * i, 4, file.path), values.view(torch.uint8)
            )
