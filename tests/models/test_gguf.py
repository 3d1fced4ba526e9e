"""GGUF files: every number format, both row orders, and the demo model itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as GGML
from gguf.quants import quantize

from tests import oracle
from tests.ggml_types import Newer
from tests.models.checkpoints import make_model
from tests.models.runner import PagedRunner, load
from vllm_lite.errors import CheckpointError

IDS = [5, 9, 2, 77, 130, 0, 31, 64, 66, 128, 1]
HEADS, KV_HEADS, HEAD_SIZE = 4, 2, 64
# Rows are whole super-blocks of 256 values.
SIZES: dict[str, Any] = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD_SIZE,
    "rms_norm_eps": 1e-5,
}
SIMPLE = [
    *(GGML.F32, GGML.F16, GGML.BF16, GGML.Q4_0, GGML.Q4_1, GGML.Q5_0, GGML.Q5_1, GGML.Q8_0),
    *(GGML.MXFP4, GGML.TQ1_0, GGML.TQ2_0),
]
# Bytes of a block that are float16 scales; any other byte is free. gguf cannot write these types.
RANDOM_SCALES: dict[GGML, tuple[int, ...]] = {
    GGML.IQ4_NL: (0,),
    GGML.Q2_K: (80, 82),
    GGML.Q3_K: (108,),
    GGML.Q4_K: (0, 2),
    GGML.Q5_K: (0, 2),
    GGML.Q6_K: (208,),
    GGML.IQ1_S: (0,),
    GGML.IQ1_M: (),
    GGML.IQ2_XXS: (0,),
    GGML.IQ2_XS: (0,),
    GGML.IQ2_S: (0,),
    GGML.IQ3_XXS: (0,),
    GGML.IQ3_S: (0,),
    GGML.IQ4_XS: (0,),
    GGML.NVFP4: (),
    GGML.Q1_0: (0,),
    Newer.Q2_0: (0,),
}
# Where a block has floats by which all its values are multiplied; NVFP4 and IQ1_M have no such.
SCALES: dict[GGML, tuple[int, ...]] = {
    **{kind: (0,) for kind in (GGML.Q4_0, GGML.Q5_0, GGML.Q8_0, GGML.MXFP4)},
    **{kind: (0, 2) for kind in (GGML.Q4_1, GGML.Q5_1)},
    GGML.TQ1_0: (52,),
    GGML.TQ2_0: (64,),
    **{kind: places for kind, places in list(RANDOM_SCALES.items())[:-1] if places},
}
Array = np.ndarray[Any, Any]


def permute(rows: Array, num_heads: int) -> Array:
    """llama.cpp's order of rotary rows, as its converter makes it."""
    halves = rows.reshape(num_heads, 2, rows.shape[0] // num_heads // 2, *rows.shape[1:])
    return halves.swapaxes(1, 2).reshape(rows.shape)


def packed(values: Array, kind: GGML, rng: np.random.Generator) -> Array:
    """`values` in storage type `kind`; others are random bytes with modest scales instead."""
    if kind not in RANDOM_SCALES:
        return quantize(np.ascontiguousarray(values, dtype=np.float32), kind)
    block, size = gguf.GGML_QUANT_SIZES[kind]
    shape = (*values.shape[:-1], values.shape[-1] // block, size)
    data = rng.integers(0, 256, shape, dtype=np.uint8)
    for offset in RANDOM_SCALES[kind]:
        scale = rng.uniform(1e-4, 1e-3, (*shape[:-1], 1)).astype("<f2")
        data[..., offset : offset + 2] = scale.view(np.uint8)
    if kind is GGML.IQ1_M:  # the four highest bits of its scale
        data[..., 55] = data[..., 55] & 15 | 0x10
    if kind is GGML.NVFP4:  # scales from 1/64 on
        data[..., :4] = data[..., :4] & 7 | 8
    return data.reshape(*values.shape[:-1], -1)


def named_arrays(model: torch.nn.Module) -> Iterator[tuple[str, Array]]:
    """Parameters as a converter finds them; the experts of a layer in stacks."""
    for name, parameter in model.named_parameters():
        values = parameter.detach().float().numpy()
        block, _, last = name.rpartition(".experts.")
        if last == "gate_up_proj":
            gate, up = np.split(values, 2, axis=1)
            yield f"{block}.experts.gate_proj.weight", gate
            yield f"{block}.experts.up_proj.weight", up
        elif last == "down_proj":
            yield f"{block}.experts.down_proj.weight", values
        else:
            yield name, values


def write_gguf(
    path: Path,
    family: str,
    model: torch.nn.Module,
    kind: GGML | Callable[[str], GGML],
    extra: dict[str, Array] | None = None,
    header: dict[str, int] | None = None,
) -> Path:
    """`model` as a GGUF file whose matrices are stored as `kind`, which may depend on the name.

    `extra` are further tensors, and `header` are numbers by their keys.
    """
    writer = gguf.GGUFWriter(path, family)
    writer.add_block_count(len(model.get_submodule("model.layers")))
    writer.add_context_length(128)
    writer.add_embedding_length(SIZES["hidden_size"])
    writer.add_feed_forward_length(SIZES["intermediate_size"])
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_key_length(HEAD_SIZE)
    writer.add_value_length(HEAD_SIZE)
    writer.add_layer_norm_rms_eps(SIZES["rms_norm_eps"])
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(131)
    for key, value in (header or {}).items():
        writer.add_uint32(key, value)
    rng = np.random.default_rng(0)
    if family.endswith("moe"):
        writer.add_expert_count(model.config.num_experts)
        writer.add_expert_used_count(model.config.num_experts_per_tok)
        writer.add_expert_feed_forward_length(model.config.moe_intermediate_size)
    num_layers = len(model.get_submodule("model.layers"))
    for name, values in named_arrays(model):
        short, suffix = oracle.gguf_name(name, family, num_layers).rsplit(".", 1)
        part = name.split(".")[-2]
        if family == "llama" and part in ("q_proj", "k_proj"):
            values = permute(values, HEADS if part == "q_proj" else KV_HEADS)
        if values.ndim == 1:
            writer.add_tensor(f"{short}.{suffix}", np.ascontiguousarray(values))
        else:
            chosen = kind(short) if callable(kind) else kind
            data = packed(values, chosen, rng)
            writer.add_tensor(f"{short}.{suffix}", data, raw_dtype=chosen)
    for name, values in (extra or {}).items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def assert_equal_to_transformers(path: Path, reference: Any, permuted: bool) -> None:
    is_tied = reference.config.tie_word_embeddings
    names = [name for name in reference.state_dict() if name != "lm_head.weight" or not is_tied]
    state = oracle.gguf_state_dict(str(path), names, HEAD_SIZE, permuted=permuted)
    if "lm_head.weight" not in state:
        state["lm_head.weight"] = state["model.embed_tokens.weight"]
    reference.load_state_dict(state, strict=True)
    with torch.inference_mode():
        want = reference(torch.tensor([IDS])).logits[0]
    got = PagedRunner(load(path)).step({"a": IDS})["a"]
    torch.testing.assert_close(got, want, atol=1e-4 * max(1.0, float(want.abs().max())), rtol=0)


@pytest.mark.parametrize(
    "kind",
    [*SIMPLE, *list(RANDOM_SCALES)[:-2]],  # gguf cannot read the last two
    ids=lambda kind: kind.name,
)
def test_every_storage_type(kind: GGML, tmp_path: Path) -> None:
    reference = make_model("llama", **SIZES)
    path = write_gguf(tmp_path / "m.gguf", "llama", reference, kind)
    assert_equal_to_transformers(path, reference, permuted=True)


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("llama", {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True}),
        ("qwen2", {}),
        ("qwen3", {"tie_word_embeddings": True}),
    ],
)
def test_every_family(family: str, changes: dict[str, Any], tmp_path: Path) -> None:
    sizes = {**SIZES, **changes}
    if family == "qwen2":
        del sizes["head_dim"]
    reference = make_model(family, **sizes)
    path = write_gguf(tmp_path / "m.gguf", family, reference, GGML.Q8_0)
    assert_equal_to_transformers(path, reference, permuted=family == "llama")


def test_missing_and_unknown_tensors_are_named(tmp_path: Path) -> None:
    reference = make_model("llama", **SIZES)
    path = write_gguf(
        tmp_path / "m.gguf", "llama", reference, GGML.F16, {"blk.0.odd": np.zeros(4, np.float32)}
    )
    with pytest.raises(CheckpointError, match=r"'blk\.0\.odd'"):
        load(path)
    del reference.model.layers[1].mlp.up_proj
    path = write_gguf(tmp_path / "m.gguf", "llama", reference, GGML.F16)
    with pytest.raises(CheckpointError, match=r"blk\.1\.ffn_up\.weight"):
        load(path)


@pytest.mark.parametrize("keep", [0, 10, 200, 0.5, 0.999])
def test_a_cut_file_is_refused(keep: float, tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", "llama", make_model("llama", **SIZES), GGML.Q8_0)
    data = path.read_bytes()
    path.write_bytes(data[: int(keep * len(data)) if isinstance(keep, float) else keep])
    with pytest.raises(CheckpointError) as caught:
        load(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["token_embd", "blk.1.attn_q", "output"])
@pytest.mark.parametrize("kind", SCALES, ids=lambda kind: kind.name)
def test_scales_that_are_not_finite_are_refused_by_name(
    kind: GGML, name: str, tmp_path: Path
) -> None:
    path = write_gguf(tmp_path / "m.gguf", "llama", make_model("llama", **SIZES), kind)
    (tensor,) = [t for t in gguf.GGUFReader(path).tensors if t.name == f"{name}.weight"]
    size, good = gguf.GGML_QUANT_SIZES[kind][1], path.read_bytes()
    for place in SCALES[kind]:
        damaged = bytearray(good)
        at = tensor.data_offset + 5 * size + place
        wrong = b"\xff" if kind is GGML.MXFP4 else np.float16(np.nan).tobytes()
        damaged[at : at + len(wrong)] = wrong
        path.write_bytes(damaged)
        with pytest.raises(CheckpointError, match=rf"'{name}.weight' holds scales that are not"):
            load(path, quantization="gguf")


@pytest.mark.slow
def test_the_demo_models_greedy_tokens_are_transformers() -> None:
    reference = oracle.demo_hf_model()
    ids = [1, 4093, 198, 1780, 314, 260, 3575, 282, 4649, 47, 2, 198]
    want, gaps = oracle.greedy(reference, ids, 24)
    assert min(gaps) > 1e-3  # clear enough that rounding decides nothing
    runner = PagedRunner(load("demo", max_model_len=256))
    step, got = runner.step({"a": ids})["a"], []
    for _ in range(24):
        got.append(int(step[-1].argmax()))
        step = runner.step({"a": got[-1:]})["a"]
    assert got == want
