"""Every family's logits are transformers', however its tokens are cut into steps."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import MinistralConfig, MinistralForCausalLM

from tests.models.checkpoints import TINY, make_model, save
from tests.models.families import CASES, FAMILIES
from tests.models.families.family import LLAMA3, YARN
from tests.models.runner import PagedRunner, load
from vllm_lite.errors import CheckpointError, UsageError

LENGTH = 44
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0, 1.1, 1.3, 1.7, 2.0, 2.5],
    "long_factor": [1.0, 1.5, 2.0, 4.0, 8.0, 16.0],
}
LONG = {"max_position_embeddings": 128, "original_max_position_embeddings": 32}


def ids_of(seed: int, length: int = LENGTH) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 131, (length,), generator=generator).tolist()


@torch.inference_mode()
def expected(model: Any, ids: list[int]) -> torch.Tensor:
    return model(torch.tensor([ids])).logits[0].float()


def test_every_family_is_tried_in_several_shapes() -> None:
    assert [name for name, family in FAMILIES.items() if len(family.cases) < 2] == []


@pytest.mark.parametrize("case", CASES)
def test_logits_equal_transformers(case: str, tmp_path: Path) -> None:
    family, changes = CASES[case]
    reference = make_model(family, **changes)
    model = load(save(reference, tmp_path))
    ids, other = ids_of(1), ids_of(2, 21)
    want, want_other = expected(reference, ids), expected(reference, other)

    whole = PagedRunner(model).step({"a": ids})["a"]
    torch.testing.assert_close(whole, want, atol=1e-4, rtol=0)

    # Prompt in chunks, then token by token, beside another sequence that starts later.
    runner = PagedRunner(model, block_size=16)
    parts = [runner.step({"a": ids[:13]})["a"]]
    mixed = runner.step({"b": other[:20], "a": ids[13:30]})
    parts += [mixed["a"]]
    others = [mixed["b"]]
    mixed = runner.step({"a": ids[30:31], "b": other[20:]})
    parts += [mixed["a"]]
    others += [mixed["b"]]
    parts += [runner.step({"a": [token]})["a"] for token in ids[31:]]
    torch.testing.assert_close(torch.cat(parts), want, atol=1e-4, rtol=0)
    torch.testing.assert_close(torch.cat(others), want_other, atol=1e-4, rtol=0)


@pytest.mark.parametrize(("length", "max_model_len"), [(44, 128), (21, 32)], ids=["long", "short"])
def test_longrope_follows_the_longest_sequence_that_may_come(
    length: int, max_model_len: int, tmp_path: Path
) -> None:
    reference = make_model("phi3", rope_parameters=LONGROPE, **LONG)
    model = load(save(reference, tmp_path), max_model_len=max_model_len)
    ids = ids_of(1, length)
    got = PagedRunner(model).step({"a": ids})["a"]
    torch.testing.assert_close(got, expected(reference, ids), atol=1e-4, rtol=0)


@pytest.mark.parametrize(("length", "max_model_len"), [(44, 128), (21, 32)], ids=["long", "short"])
def test_phimoe_s_longrope_has_magnitudes_of_its_own(
    length: int, max_model_len: int, tmp_path: Path
) -> None:
    """Transformers 5 takes the long set's magnitude, but forgets to take the set itself."""
    rope = {**LONGROPE, "short_mscale": 1.1, "long_mscale": 1.3}
    rope["original_max_position_embeddings"] = LONG["original_max_position_embeddings"]
    reference = make_model("phimoe", rope_parameters=rope, max_position_embeddings=128)
    rotary = reference.model.rotary_emb
    rotary.rope_init_fn = partial(rotary.rope_init_fn, seq_len=length)
    model = load(save(reference, tmp_path), max_model_len=max_model_len)
    ids = ids_of(1, length)
    got = PagedRunner(model).step({"a": ids})["a"]
    torch.testing.assert_close(got, expected(reference, ids), atol=1e-4, rtol=0)


def test_mistral_has_the_windows_that_layer_types_names(tmp_path: Path) -> None:
    """Ministral's checkpoints call themselves Mistral's."""
    kinds = ["sliding_attention", "full_attention"]
    changes = {"sliding_window": 9, "head_dim": 12, "rope_parameters": LLAMA3}
    settings = MinistralConfig(**TINY, **changes, layer_types=kinds)
    reference = MinistralForCausalLM(settings).eval()
    config = save(reference, tmp_path) / "config.json"
    named = json.loads(config.read_text()) | {"architectures": ["MistralForCausalLM"]}
    config.write_text(json.dumps(named))
    got = PagedRunner(load(tmp_path)).step({"a": ids_of(1)})["a"]
    torch.testing.assert_close(got, expected(reference, ids_of(1)), atol=1e-4, rtol=0)


@pytest.mark.parametrize("rope", [LLAMA3, YARN], ids=["llama3", "yarn"])
def test_the_trained_length_may_stand_beside_the_rope_scaling(
    rope: dict[str, Any], tmp_path: Path
) -> None:
    reference = make_model("llama", rope_parameters=rope)
    config = save(reference, tmp_path) / "config.json"
    settings = json.loads(config.read_text())
    trained = settings["rope_parameters"].pop("original_max_position_embeddings")
    config.write_text(json.dumps({**settings, "original_max_position_embeddings": trained}))
    got = PagedRunner(load(tmp_path)).step({"a": ids_of(1)})["a"]
    torch.testing.assert_close(got, expected(reference, ids_of(1)), atol=1e-4, rtol=0)


def test_dynamic_rope_beyond_the_trained_length_is_that_of_decoding(tmp_path: Path) -> None:
    rope = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}
    reference = make_model("llama", max_position_embeddings=32, rope_parameters=rope)
    model = load(save(reference, tmp_path))
    ids = ids_of(4)
    with torch.inference_mode():
        result = reference(torch.tensor([ids[:30]]), use_cache=True)
        want = [result.logits[0]]
        for token in ids[30:]:
            result = reference(torch.tensor([[token]]), past_key_values=result.past_key_values)
            want.append(result.logits[0])
    got = PagedRunner(model).step({"a": ids})["a"]
    torch.testing.assert_close(got, torch.cat(want), atol=1e-4, rtol=0)


@pytest.mark.parametrize("family", FAMILIES)
def test_bfloat16_is_close_to_float32(family: str, tmp_path: Path) -> None:
    reference = make_model(family)
    save(reference, tmp_path)
    got = PagedRunner(load(tmp_path, dtype="bfloat16")).step({"a": ids_of(1)})["a"]
    want = expected(reference, ids_of(1))
    assert got.dtype is torch.float32
    assert torch.nn.functional.cosine_similarity(got, want, dim=1).min() > 0.99


@pytest.mark.parametrize(
    ("case", "windows"),
    [
        ("mistral-window", (9, 9)),
        ("qwen2-window", (7, 7)),
        ("qwen2", (None, None)),
        ("qwen3-layer-types", (7, None)),
    ],
)
def test_each_layer_s_cache_has_its_window(
    case: str, windows: tuple[int | None, ...], tmp_path: Path
) -> None:
    family, changes = CASES[case]
    spec = load(save(make_model(family, **changes), tmp_path)).kv_cache_spec()
    assert tuple(layer.sliding_window for layer in spec.layers) == windows
    assert {(layer.num_kv_heads, layer.dtype) for layer in spec.layers} == {(2, "float32")}


def test_latents_alone_are_cached(tmp_path: Path) -> None:
    path = save(make_model("minicpm3"), tmp_path)
    spec = load(path).kv_cache_spec()
    assert [layer.bytes_per_token for layer in spec.layers] == [(24 + 6) * 4] * 2
    with pytest.raises(UsageError, match=r"a scale for each row .* use fp8 or auto"):
        load(path, kv_cache_dtype="int8")
    ids = ids_of(1)
    rounded = PagedRunner(load(path, kv_cache_dtype="fp8")).step({"a": ids})["a"]
    exact = PagedRunner(load(path)).step({"a": ids})["a"]
    assert torch.nn.functional.cosine_similarity(rounded, exact, dim=1).min() > 0.9


@pytest.mark.parametrize("case", ["mistral-window", "gemma3-scaled"])
def test_a_sliding_window_can_be_switched_off(case: str, tmp_path: Path) -> None:
    """A layer keeps what else it has of its own, as its rotation."""
    family, changes = CASES[case]
    reference = make_model(family, **changes)
    save(reference, tmp_path)
    model = load(tmp_path, disable_sliding_window=True)
    assert {layer.sliding_window for layer in model.kv_cache_spec().layers} == {None}
    ids = ids_of(1, 9)
    got = PagedRunner(model).step({"a": ids})["a"]
    torch.testing.assert_close(got, expected(reference, ids), atol=1e-4, rtol=0)


def test_layers_for_drafts_are_left_out(tmp_path: Path) -> None:
    reference = make_model("deepseek_v3")
    path = save(reference, tmp_path)
    file = path / "model.safetensors"
    tensors = load_file(file)
    more = {f"model.layers.{i}.eh_proj.weight": torch.ones(3, 3) for i in (2, 3)}
    save_file(tensors | more, file, {"format": "pt"})
    with pytest.raises(CheckpointError, match=r"has the tensor 'model\.layers\.3\.eh_proj"):
        load(path)
    save_file(tensors | {k: v for k, v in more.items() if ".2." in k}, file, {"format": "pt"})
    got = PagedRunner(load(path)).step({"a": ids_of(1)})["a"]
    torch.testing.assert_close(got, expected(reference, ids_of(1)), atol=1e-4, rtol=0)
    with pytest.raises(CheckpointError, match="scoring_func is 'softmax', not 'sigmoid'"):
        load(path, hf_overrides={"scoring_func": "softmax"})
