"""Quantised models by a GPU's operations: Triton's equal their reference, tokens and all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from gguf import GGMLQuantizationType as GGML

pytest.importorskip("triton")

from tests.models import test_aqlm, test_fp_quant
from tests.models import test_quantized_checkpoints as checkpoints
from tests.models.checkpoints import make_model, save
from tests.models.gpu_ops import reference_ops, selected, triton_ops
from tests.models.quantized_checkpoints import gptq, write_pair
from tests.models.runner import PagedRunner, load
from tests.models.test_gguf import IDS, SIZES, write_gguf
from vllm_lite.errors import CheckpointError
from vllm_lite.kernels.gpu import tuning
from vllm_lite.kernels.reference.quantized import QuantizedRows
from vllm_lite.kernels.stacked_weights import QuantizedStack
from vllm_lite.layers.experts import SparseMLP
from vllm_lite.quantization.grouped import GroupedKernel
from vllm_lite.quantization.quantized import QuantizedKernel
from vllm_lite.quantization.scaled import ScaledKernel

NUM_TOKENS = 2
# Three query heads share a kv-head, and no size is a power of two.
ODD: dict[str, Any] = {
    "hidden_size": 96,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "head_dim": 32,
}


@pytest.fixture(autouse=True)
def few_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles as wide as these models, so that the interpreter has few to run."""
    tile = tuning.ProductTile(16, 256, 64, 4, 1)
    monkeypatch.setattr(tuning, "product_tile", lambda *_: tile)


def continued(model: Any) -> tuple[list[int], torch.Tensor]:
    """Greedy tokens after a prompt, and the logits that led to them."""
    runner = PagedRunner(model)
    rows = [runner.step({"a": IDS})["a"][-1]]
    for _ in range(NUM_TOKENS - 1):
        rows.append(runner.step({"a": [int(rows[-1].argmax())]})["a"][-1])
    return [int(row.argmax()) for row in rows], torch.stack(rows)


def kernels(model: Any) -> list[Any]:
    return [m.kernel for name, m in model.named_modules() if hasattr(m, "kernel")]


def check_equal(path: Path, **options: Any) -> tuple[Any, torch.Tensor]:
    """Triton's model at `path` writes what the reference's writes; returns the former's logits."""
    with selected(reference_ops()):
        want = continued(load(path, **options))
    with selected(triton_ops()):
        model = load(path, **options)
        got = continued(model)
    assert got[0] == want[0]
    torch.testing.assert_close(got[1], want[1], rtol=1e-3, atol=1e-3 * float(want[1].abs().max()))
    return model, got[1]


@pytest.mark.parametrize(
    ("name", "family"), [("int8", "llama"), ("fp8", "qwen3"), ("int4", "llama"), ("int4", "qwen3")]
)
def test_weights_are_rounded_as_they_are_loaded(name: str, family: str, tmp_path: Path) -> None:
    tied = family == "qwen3"
    path = save(make_model(family, **ODD, attention_bias=True, tie_word_embeddings=tied), tmp_path)
    model, _ = check_equal(path, quantization=name)
    made = ScaledKernel if name != "int4" else QuantizedKernel
    assert sum(isinstance(kernel, made) for kernel in kernels(model)) >= 4
    limit = {"int8": 0.1, "fp8": 0.3, "int4": 0.5}[name]
    plain = PagedRunner(load(path)).step({"a": IDS})["a"]
    with selected(reference_ops()):
        rounded = PagedRunner(load(path, quantization=name)).step({"a": IDS})["a"]
    assert float((rounded - plain).norm() / plain.norm()) < limit


def test_inputs_may_be_turned_first(tmp_path: Path) -> None:
    form = test_fp_quant.FORMS["fp_quant nvfp4"]
    packed, plain = write_pair(tmp_path, form, test_fp_quant.written(form), **ODD)
    model, logits = check_equal(packed)
    assert len(model.model.layers[0].mlp.down_proj.kernel.stored) == 1
    want = continued(load(plain))[1]
    assert float((logits - want).norm() / want.norm()) < 1.0  # of rounded inputs


def test_gguf_s_rows_stay_as_small_as_in_the_file(tmp_path: Path) -> None:
    kinds = {
        "attn_v": GGML.Q6_K,
        "ffn_up": GGML.F16,
        "token_embd": GGML.Q8_0,
        "ffn_down": GGML.Q4_K,
    }
    path = write_gguf(
        tmp_path / "m.gguf",
        "llama",
        make_model("llama", **SIZES, num_hidden_layers=1, tie_word_embeddings=True),
        lambda name: kinds.get(name.rsplit(".", 1)[-1], GGML.Q4_0),
    )
    model, logits = check_equal(path, quantization="gguf")
    qkv = model.model.layers[0].self_attn.qkv_proj.kernel
    assert len(qkv.weight.parts) == 2  # queries and keys are one product
    head = model.lm_head.kernel
    assert head.weight.nbytes == 131 * 256 // 32 * 34
    plain = load(path, quantization="dequantize")
    torch.testing.assert_close(continued(plain)[1], logits, rtol=1e-3, atol=1e-2)


@pytest.mark.parametrize("name", ["awq", "gptq act-order", "gptq 8"])
def test_packed_integers_of_checkpoints(name: str, tmp_path: Path) -> None:
    settings, quantise, _ = checkpoints.PACKED[name]
    packed, plain = write_pair(tmp_path, settings, quantise, **checkpoints.SIZES)
    model, logits = check_equal(packed)
    assert sum(isinstance(kernel, GroupedKernel) for kernel in kernels(model)) == 4
    torch.testing.assert_close(logits, continued(load(plain))[1], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    "name", ["fp8 static", "fp8 blocks", "fp8 blocks by powers", "int channels"]
)
def test_codes_of_checkpoints(name: str, tmp_path: Path) -> None:
    settings, quantise = checkpoints.CODES[name]
    sizes = checkpoints.SQUARE if "blocks" in name else checkpoints.SIZES
    packed, plain = write_pair(tmp_path, settings, quantise, **sizes)
    model, logits = check_equal(packed)
    made = [kernel for kernel in kernels(model) if isinstance(kernel, ScaledKernel)]
    assert [kernel.has_powers for kernel in made] == ["powers" in name] * 4
    exact = continued(load(plain))[1][0]
    assert float((logits[0] - exact).norm() / exact.norm()) < 0.3


MIXTURE: dict[str, Any] = {
    **ODD,
    "hidden_size": 64,
    "moe_intermediate_size": 32,
    "num_experts": 3,
    "num_experts_per_tok": 2,
}


@pytest.mark.parametrize("name", ["awq", "gptq act-order", "fp8 static", "aqlm"])
def test_experts_of_checkpoints_stay_as_they_are_stored(name: str, tmp_path: Path) -> None:
    cases = checkpoints.PACKED | checkpoints.CODES
    cases["aqlm"] = (test_aqlm.FORMS["2x8"], test_aqlm.written(2), {})
    settings, quantise, *_ = cases[name]
    sizes = MIXTURE | {"hidden_size": 128, "moe_intermediate_size": 128}
    packed, plain = write_pair(tmp_path, settings, quantise, "qwen3_moe", **sizes)
    model, logits = check_equal(packed)
    (mixture,) = (m for m in model.modules() if isinstance(m, SparseMLP))
    values = 128 * 128
    assert sum(part.nbytes for part in mixture.kernel.down.parts) < 3 * values * 1.1
    if "fp8" not in name:  # whose other layers round their inputs
        want = continued(load(plain))[1]
        torch.testing.assert_close(logits, want, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("is_ordered", [True, False])
def test_experts_may_have_groups_that_are_padded(is_ordered: bool, tmp_path: Path) -> None:
    settings = checkpoints.GPTQ | {"group_size": 8, "desc_act": not is_ordered}
    packed, plain = write_pair(
        tmp_path, settings, gptq(8, 4, True, is_ordered), "qwen3_moe", **MIXTURE
    )
    want = continued(load(plain))[1]
    torch.testing.assert_close(check_equal(packed)[1], want, rtol=1e-3, atol=1e-3)


IN_FLIGHT = [(name, 64) for name in ("int4", "mxfp4", "int8", "fp8", "int8_per_channel", "rtn")]


@pytest.mark.parametrize(
    ("name", "size"), [*IN_FLIGHT, *((name, 72) for name in ("mxfp4", "nvfp4", "mxfp8", "nf4"))]
)
def test_experts_are_rounded_as_they_are_loaded(name: str, size: int, tmp_path: Path) -> None:
    """Groups of 72 and of 40 inputs end in a shorter one."""
    sizes = MIXTURE | {"hidden_size": size, "moe_intermediate_size": size - 32, "head_dim": 24}
    path = save(make_model("qwen3_moe", **sizes), tmp_path)
    model, _ = check_equal(path, quantization=name)
    (mixture,) = (m for m in model.modules() if isinstance(m, SparseMLP))
    assert isinstance(mixture.kernel.gate_up, QuantizedStack)


def test_rows_that_do_not_fit_are_refused() -> None:
    ops = triton_ops()
    with pytest.raises(CheckpointError, match="type 4 cannot be multiplied"):
        ops.pack_quantized([QuantizedRows(torch.zeros(1, 18, dtype=torch.uint8), 4, 32)])
    with pytest.raises(CheckpointError, match="rows of 64 values have 18 bytes"):
        ops.pack_quantized([QuantizedRows(torch.zeros(1, 18, dtype=torch.uint8), 2, 64)])


def test_a_cache_s_scales_come_from_the_checkpoint(tmp_path: Path) -> None:
    packed, _ = checkpoints.write_with_cache_scales(tmp_path)
    check_equal(packed, kv_cache_dtype="fp8")
