"""A checkpoint's scales of cached keys and values: of heads, of other caches, and left out."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.models.quantized_checkpoints import write_pair
from tests.models.runner import load
from tests.models.test_quantized_checkpoints import E4M3, FP8, SIZES, TENSORS, compressed, logits
from vllm_lite.distributed.groups import Shard, tensor_parallel
from vllm_lite.distributed.shared_memory import SharedMemoryGroup
from vllm_lite.errors import CheckpointError
from vllm_lite.kernels.metadata import AttentionMetadata, attention_metadata
from vllm_lite.layers.attention import HeadScaledCacheAttention, LayerCache, attention
from vllm_lite.loader import contents

PLAIN = {"quant_method": "compressed-tensors"}
BY_HEAD = PLAIN | {"kv_cache_scheme": TENSORS | {"strategy": "attn_head"}}
# Two kv-heads, of two queries each.
HEADS = SIZES | {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 24}


def write(directory: Path, settings: dict[str, Any], **scales: Tensor) -> tuple[Path, Path]:
    """A pair of plain weights; the first has `scales` in its attention."""

    def quantise(name: str, weight: Tensor) -> Any:
        own = {f"../{part}": number for part, number in scales.items()}
        return {"weight": weight} | (own if "o_proj" in name else {}), weight

    return write_pair(directory, settings, quantise, **HEADS)


def numbers(shape: tuple[int, ...]) -> dict[str, Tensor]:
    """Scales of two heads, and what compressed-tensors writes beside them."""
    scales = {"k_scale": torch.tensor([0.05, 0.5]), "v_scale": torch.tensor([0.02, 1.5])}
    scales = {name: each.view(shape).bfloat16() for name, each in scales.items()}
    zeros = {f"{part}_zero_point": torch.zeros(shape).to(E4M3) for part in "kv"}
    return scales | zeros | {"q_scale": torch.ones(4, 1, 1), "q_zero_point": torch.zeros(4, 1, 1)}


def heads_of(model: Any) -> list[Any]:
    return [m for m in model.modules() if isinstance(m, HeadScaledCacheAttention)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_heads_are_stored_and_attended_to_by_scales_of_their_own(dtype: torch.dtype) -> None:
    """As exact attention over keys and values that are rounded head by head."""
    scales = torch.tensor([[0.5, 2.0**-13], [2.0**-12, 3.0]])
    attend = attention(0.3, cache_scales=Shard.whole(2))
    for slot, own in zip(attend.weight_slots(), scales, strict=True):
        slot.slot.write(own)
    attend.process_weights_after_loading()
    query = torch.randn(5, 4, 16).to(dtype)
    held = [torch.randn(5, 2, 16) * own[:, None] * 50 for own in scales]
    key, value = (part.to(dtype) for part in held)
    step = AttentionMetadata(
        query_start_loc=torch.tensor([0, 5], dtype=torch.int32),
        seq_lens=torch.tensor([5], dtype=torch.int32),
        block_tables=(torch.zeros(1, 1, dtype=torch.int32),),
        slot_mappings=(torch.arange(5),),
        num_tokens=5,
        num_requests=1,
        max_query_len=5,
        max_seq_len=5,
    )
    attend.bind_kv_cache(LayerCache(*torch.zeros(2, 1, 2, 8, 16).to(E4M3)))
    with attention_metadata(step):
        got = attend.forward(query, key, value)
    keys, values = (
        ((part / own[:, None]).to(dtype).to(E4M3).float() * own[:, None]).repeat_interleave(2, 1)
        for part, own in zip((key, value), scales, strict=True)
    )
    scores = torch.einsum("thd,shd->hts", query.float(), keys) * 0.3
    scores += torch.full((5, 5), -torch.inf).triu(1)
    want = torch.einsum("hts,shd->thd", scores.softmax(-1), values)
    limit = 1e-5 if dtype is torch.float32 else 0.02
    size = want.abs().amax((0, 2), keepdim=True)  # of heads of very different sizes
    torch.testing.assert_close(got.float() / size, want / size, rtol=0, atol=limit)


@pytest.mark.parametrize("shape", [(2,), (2, 1, 1)], ids=["numbers", "tensors"])
def test_heads_have_the_checkpoint_s_scales(shape: tuple[int, ...], tmp_path: Path) -> None:
    stored = numbers(shape)
    packed, plain = write(tmp_path, BY_HEAD, **stored)
    exact = logits(load(plain))
    assert torch.equal(logits(load(packed)), exact)  # no scales without fp8
    model = load(packed, kv_cache_dtype="fp8")
    (attend,) = heads_of(model)
    want = torch.stack([stored[name].flatten().float() for name in ("k_scale", "v_scale")])
    assert torch.equal(attend._by_head[..., 0], want)
    assert float((logits(model) - exact).norm() / exact.norm()) < 0.25


def test_equal_scales_of_heads_are_those_of_the_layer(tmp_path: Path) -> None:
    settings = {"layer": PLAIN | {"kv_cache_scheme": TENSORS}, "head": BY_HEAD}
    results = []
    for name, count in (("layer", 1), ("head", 2)):
        scales = {"k_scale": torch.full((count,), 0.02), "v_scale": torch.full((count,), 0.004)}
        packed, _ = write(tmp_path / name, settings[name], **scales)
        results.append(logits(load(packed, kv_cache_dtype="fp8")))
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("size", [2, 4])
def test_ranks_have_the_scales_of_their_heads(size: int, tmp_path: Path) -> None:
    """Ranks that outnumber the heads of keys share them."""
    packed, _ = write(tmp_path, BY_HEAD, **numbers((2, 1, 1)))
    whole = heads_of(load(packed, kv_cache_dtype="fp8"))[0]._by_head
    fd = os.memfd_create("ranks")
    for rank in range(size):
        with tensor_parallel(SharedMemoryGroup(fd, rank, size)):
            (attend,) = heads_of(load(packed, kv_cache_dtype="fp8"))
        head = rank * 2 // size
        assert torch.equal(attend._by_head, whole[:, head : head + 1])
    os.close(fd)


def test_scales_of_heads_that_are_no_numbers_are_refused(tmp_path: Path) -> None:
    stored = numbers((2,)) | {"v_scale": torch.tensor([1.0, 0.0])}
    packed, _ = write(tmp_path, BY_HEAD, **stored)
    with pytest.raises(CheckpointError, match=r"cache are 0.5 and 0.0; use --kv-cache-dtype auto"):
        load(packed, kv_cache_dtype="fp8")
    packed, _ = write(tmp_path / "fewer", BY_HEAD, **numbers((2,)) | {"k_scale": torch.ones(3)})
    with pytest.raises(CheckpointError, match=r"k_scale' has the shape \[3\]"):
        load(packed, kv_cache_dtype="fp8")


MODELOPT = {"quant_method": "modelopt", "quant_algo": None}
QUARK = {"quant_method": "quark", "export": {"kv_cache_group": ["*k_proj", "*v_proj"]}}
OF_QUARK = {"weight": None, "output_tensors": {"dtype": "int8", "qscheme": "per_tensor"}}
OTHERS: dict[str, tuple[dict[str, Any], str]] = {
    "integers": (
        PLAIN | {"kv_cache_scheme": TENSORS | {"type": "int"}},
        "int of 8 bits by tensor",
    ),
    "integers of attention": (
        compressed(TENSORS, {})
        | {
            "config_groups": {
                "a": {
                    "targets": ["re:.*self_attn$"],
                    "weights": None,
                    "input_activations": TENSORS | {"type": "int"},
                }
            }
        },
        "int of 8 bits by tensor",
    ),
    "four bits": (
        PLAIN | {"kv_cache_scheme": TENSORS | {"num_bits": 4, "strategy": "group"}},
        "float of 4 bits by group",
    ),
    "asymmetric": (
        PLAIN | {"kv_cache_scheme": TENSORS | {"symmetric": False}},
        "float of 8 bits by tensor, asymmetric",
    ),
    "modelopt": (MODELOPT | {"kv_cache_quant_algo": "NVFP4"}, "NVFP4"),
    "modelopt in config.json": (
        MODELOPT | {"kv_cache_scheme": {"type": "int", "num_bits": 8}},
        "int of 8 bits",
    ),
    "quark": (QUARK | {"layer_quant_config": {"*k_proj": OF_QUARK}}, "int8 per_tensor"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_scales_of_another_cache_are_left_out_or_one_error(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings, shown = OTHERS[name]
    stored = {f"{part}_{of}": torch.ones(1) for part in "kv" for of in ("scale", "zero_point")}
    packed, plain = write(tmp_path, settings, **stored)
    with pytest.raises(CheckpointError) as caught:
        load(packed, kv_cache_dtype="fp8")
    message = str(caught.value)
    assert f"a cache of {shown}, which" in message and "use --kv-cache-dtype auto" in message
    assert "\n" not in message
    for kind in ("auto", "bfloat16", "int8"):
        want = logits(load(plain, kv_cache_dtype=kind))
        caplog.clear()
        assert torch.equal(logits(load(packed, kv_cache_dtype=kind)), want)
        assert f"a cache of {shown}, which --kv-cache-dtype {kind} leaves out" in caplog.text


def test_scales_for_8_bit_floats_are_left_out_with_the_same_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    packed, _ = write(tmp_path, BY_HEAD, **numbers((2,)))
    contents._warn_of_scales.cache_clear()
    load(packed)
    assert "a cache of 8-bit floats, which --kv-cache-dtype auto leaves out; fp8" in caplog.text
    caplog.clear()
    load(packed, kv_cache_dtype="fp8")
    load(write(tmp_path / "bare", FP8 | {"ignored_layers": ["re:.*"]})[0])
    assert "leaves out" not in caplog.text


def test_a_model_without_such_attention_says_that_it_leaves_scales_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    packed, _ = write(tmp_path, BY_HEAD, **numbers((2,)))
    load(packed, kv_cache_dtype="fp8", model_impl="transformers")
    assert "has scales for its KV cache, which this model leaves out" in caplog.text
