"""Models whose weights stay quantised: their dequantised selves with rounded activations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as GGML
from gguf.quants import dequantize

from tests.models.checkpoints import make_model, save
from tests.models.runner import PagedRunner, load
from tests.models.test_gguf import IDS, RANDOM_SCALES, SIMPLE, SIZES, write_gguf
from vllm_lite.errors import CheckpointError, UsageError
from vllm_lite.kernels.reference.quantized import round_activations
from vllm_lite.quantization.ggml_blocks import to_q4_1, to_q8_0
from vllm_lite.quantization.quantized import QuantizedKernel

KINDS = [*SIMPLE[3:], *RANDOM_SCALES]


def logits(model: Any) -> torch.Tensor:
    return PagedRunner(model).step({"a": IDS})["a"].float()


def linear_layers(model: Any) -> dict[str, Any]:
    return {name: layer for name, layer in model.named_modules() if hasattr(layer, "kernel")}


def num_inputs(layer: str) -> int:
    return int(SIZES["intermediate_size" if layer.endswith("down_proj") else "hidden_size"])


def assert_is_dequantized_with_rounded_activations(path: Path) -> None:
    kept = load(path, "float32", quantization="gguf")
    plain = load(path, "float32", quantization="dequantize")
    others = linear_layers(plain)
    for name, layer in linear_layers(kept).items():
        x = torch.randn(7, num_inputs(name))
        want = others[name].kernel(round_activations(x))
        torch.testing.assert_close(layer.kernel(x), want, rtol=1e-4, atol=1e-4 * want.abs().max())
    assert_near(logits(kept), logits(plain), 0.2)


def assert_near(got: torch.Tensor, want: torch.Tensor, limit: float) -> None:
    assert float((got - want).norm() / want.norm()) < limit


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_every_storage_type(kind: GGML, tmp_path: Path) -> None:
    model = make_model("llama", **SIZES, tie_word_embeddings=kind.value % 2 == 0)
    path = write_gguf(tmp_path / "m.gguf", "llama", model, kind)
    assert_is_dequantized_with_rounded_activations(path)


@pytest.mark.parametrize("plain", [GGML.F16, GGML.Q8_0], ids=lambda kind: kind.name)
def test_parts_of_a_layer_may_be_of_different_types(plain: GGML, tmp_path: Path) -> None:
    kinds = {"attn_v": GGML.Q6_K, "ffn_up": GGML.Q5_1, "attn_q": plain, "token_embd": plain}
    path = write_gguf(
        tmp_path / "m.gguf",
        "llama",
        make_model("llama", **SIZES, attention_bias=True),
        lambda name: kinds.get(name.rsplit(".", 1)[-1], GGML.Q4_K),
    )
    kept = load(path, "float32", quantization="gguf")
    assert_near(logits(kept), logits(load(path, "float32", quantization="dequantize")), 0.2)
    if plain is not GGML.F16:  # a plain part's activations are not rounded
        assert_is_dequantized_with_rounded_activations(path)


def test_weights_stay_as_small_as_in_the_file(tmp_path: Path) -> None:
    model = make_model("llama", **SIZES, tie_word_embeddings=True)
    path = write_gguf(tmp_path / "m.gguf", "llama", model, GGML.Q4_1)
    layers = linear_layers(load(path, "bfloat16", quantization="gguf")).values()
    assert all(isinstance(layer.kernel, QuantizedKernel) for layer in layers)
    # The head of 131 outputs is 5 panels of 32.
    assert sum(layer.kernel.weight.nbytes for layer in layers) < 1.05 * path.stat().st_size


def test_a_row_of_blocks_that_is_cut_is_refused(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", "llama", make_model("llama", **SIZES), GGML.Q8_0)
    data = path.read_bytes()
    path.write_bytes(data[:-40])
    with pytest.raises(CheckpointError, match="does not lie inside the file"):
        load(path, quantization="gguf")


@pytest.mark.parametrize(("name", "limit"), [("int8", 0.012), ("int4", 0.12)])
@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_online_quantization_is_near_the_original(
    name: str, limit: float, family: str, tmp_path: Path
) -> None:
    sizes = {**SIZES, "tie_word_embeddings": family == "qwen3"}
    path = save(make_model(family, **sizes), tmp_path)
    others = linear_layers(load(path, "float32"))
    for layer, module in linear_layers(load(path, "float32", quantization=name)).items():
        assert isinstance(module.kernel, QuantizedKernel)
        x = torch.randn(50, num_inputs(layer))
        assert_near(module.kernel(x), others[layer].kernel(x), limit)


def test_online_blocks_match_the_formats() -> None:
    weight = torch.randn(5, 96)
    weight[1] = 0
    weight[2, 7] = 100.0
    for convert, kind, steps in [(to_q8_0, GGML.Q8_0, 254), (to_q4_1, GGML.Q4_1, 15)]:
        values = torch.from_numpy(np.array(dequantize(convert(weight).numpy(), kind)))
        groups = weight.view(5, 3, 32)
        low, high = groups.aminmax(dim=2, keepdim=True)
        span = high - low if steps == 15 else 2 * torch.maximum(high, -low)
        # Half a step, and what rounding the step to half precision makes of the farthest value.
        bound = span * (0.5 / steps + 2.0**-10)
        assert bool(((values.view(5, 3, 32) - groups).abs() <= bound).all())


def test_sizes_that_do_not_fit_groups_are_one_clear_error(tmp_path: Path) -> None:
    path = save(make_model("llama"), tmp_path)
    with pytest.raises(
        UsageError, match="rounding to int8 needs layers whose inputs are multiples of 32"
    ):
        load(path, quantization="int8")


@pytest.mark.parametrize(
    ("quantization", "message"),
    [
        ("gguf", "needs a .gguf file"),
        ("dequantize", "needs a .gguf file"),
        ("awq", "use int8, int4 or fp8"),
    ],
)
def test_what_a_safetensors_model_cannot_do(
    quantization: str, message: str, tmp_path: Path
) -> None:
    path = save(make_model("llama"), tmp_path)
    with pytest.raises(UsageError, match=message):
        load(path, quantization=quantization)


def test_a_gguf_file_is_not_quantized_again(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", "llama", make_model("llama", **SIZES), GGML.F16)
    with pytest.raises(UsageError, match="is for safetensors models"):
        load(path, quantization="int4")
