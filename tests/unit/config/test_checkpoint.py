"""Facts of a checkpoint: one form from config.json, old and new, and from GGUF."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.checkpoints import LLAMA_GGUF, LLAMA_TENSORS, write_gguf, write_hf
from vllm_lite.config.architectures import SUPPORTED_ARCHITECTURES
from vllm_lite.config.checkpoint import ModelFacts, read_facts
from vllm_lite.errors import CheckpointError


def hf_facts(folder: Path, **changes: Any) -> ModelFacts:
    return read_facts(str(write_hf(folder, **changes)))


def test_sizes_are_read(tmp_path: Path) -> None:
    facts = hf_facts(tmp_path)
    assert (facts.num_layers, facts.num_heads, facts.num_kv_heads) == (2, 4, 2)
    assert (facts.hidden_size, facts.head_size, facts.vocab_size) == (64, 16, 100)
    assert (facts.max_position, facts.dtype, facts.format) == (512, "bfloat16", "hf")
    assert (facts.eos_token_ids, facts.bos_token_id) == ((2,), 1)
    assert facts.sliding_window is None


def test_head_dim_and_kv_heads_have_defaults(tmp_path: Path) -> None:
    facts = hf_facts(tmp_path, head_dim=32, num_key_value_heads=None)
    assert (facts.head_size, facts.num_kv_heads) == (32, 4)


def test_both_spellings_of_rope_are_one_dict(tmp_path: Path) -> None:
    scaling = {"factor": 4.0, "low_freq_factor": 1.0}
    old = hf_facts(
        tmp_path / "old", rope_theta=5e5, rope_scaling={"type": "llama3", **scaling}
    ).hf_config
    new = hf_facts(
        tmp_path / "new", rope_parameters={"rope_type": "llama3", "rope_theta": 5e5, **scaling}
    ).hf_config
    assert old["rope_parameters"] == new["rope_parameters"]
    assert "rope_theta" not in old
    plain = hf_facts(tmp_path / "plain").hf_config["rope_parameters"]
    assert plain == {"rope_type": "default", "rope_theta": 10000.0}


@pytest.mark.parametrize("key", ["rope_theta", "rope_scaling"])
def test_an_old_override_beats_the_new_spelling(tmp_path: Path, key: str) -> None:
    rope = {"rope_type": "default", "rope_theta": 5e5}
    path = str(write_hf(tmp_path, rope_parameters=rope))
    override: dict[str, Any] = {
        "rope_theta": 7e5,
        "rope_scaling": {"rope_type": "linear", "factor": 2.0},
    }
    got = read_facts(path, hf_overrides={key: override[key]}).hf_config["rope_parameters"]
    if key == "rope_theta":
        assert got == {"rope_type": "default", "rope_theta": 7e5}
    else:
        assert got == {"rope_type": "linear", "factor": 2.0, "rope_theta": 5e5}


@pytest.mark.parametrize(
    ("rope", "length"),
    [
        ({"rope_type": "linear", "factor": 2.0}, 1024),
        ({"rope_type": "dynamic", "factor": 4.0}, 2048),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256}, 1024),
        ({"rope_type": "llama3", "factor": 8.0}, 512),
    ],
)
def test_scaling_lengthens_the_context(tmp_path: Path, rope: dict[str, Any], length: int) -> None:
    assert hf_facts(tmp_path, rope_scaling=rope).max_position == length


def test_eos_ids_come_from_both_files_without_repeats(tmp_path: Path) -> None:
    generation = {"eos_token_id": [2, 7], "temperature": 0.6}
    facts = hf_facts(tmp_path, generation=generation)
    assert facts.eos_token_ids == (2, 7)
    assert facts.generation_config == generation


@pytest.mark.parametrize(
    ("family", "changes", "window"),
    [
        ("Llama", {"sliding_window": 128}, None),
        ("Mistral", {"sliding_window": 128}, 128),
        ("Mistral", {}, 4096),
        ("Qwen2", {"sliding_window": 128}, None),
        ("Qwen2", {"use_sliding_window": True, "sliding_window": 128}, None),
        ("Qwen2", {"use_sliding_window": True, "sliding_window": 128, "max_window_layers": 0}, 128),
        (
            "Qwen3",
            {"use_sliding_window": True, "sliding_window": 128, "max_window_layers": 1},
            None,
        ),
        (
            "Qwen3",
            {
                "use_sliding_window": True,
                "sliding_window": 128,
                "layer_types": ["sliding_attention", "sliding_attention"],
            },
            128,
        ),
    ],
)
def test_a_window_counts_where_every_layer_has_it(
    tmp_path: Path, family: str, changes: dict[str, Any], window: int | None
) -> None:
    facts = hf_facts(tmp_path, architectures=[f"{family}ForCausalLM"], **changes)
    assert facts.sliding_window == window


def test_without_its_window_a_model_is_as_long_as_the_window(tmp_path: Path) -> None:
    path = str(write_hf(tmp_path, architectures=["MistralForCausalLM"], sliding_window=128))
    facts = read_facts(path, disable_sliding_window=True)
    assert (facts.sliding_window, facts.max_position) == (None, 128)
    assert facts.hf_config["sliding_window"] is None


def test_a_null_window_is_no_window(tmp_path: Path) -> None:
    config = write_hf(tmp_path, architectures=["MistralForCausalLM"]) / "config.json"
    config.write_text(config.read_text()[:-1] + ', "sliding_window": null}')
    assert read_facts(str(tmp_path)).sliding_window is None


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({"architectures": ["GPT2LMHeadModel"]}, ", ".join(SUPPORTED_ARCHITECTURES)),
        ({"architectures": None}, "without architectures"),
        ({"quantization_config": {"quant_method": "awq"}}, "quantised by awq"),
        ({"rope_scaling": {"rope_type": "longrope"}}, "longrope"),
        ({"rope_scaling": {"rope_type": "linear"}}, "rotary factor is None"),
        ({"num_attention_heads": 0}, "num_attention_heads is 0"),
        ({"hidden_size": "64"}, "hidden_size is '64'"),
        ({"num_key_value_heads": 3}, "cannot share"),
        ({"vocab_size": None}, "vocab_size is None"),
        ({"hidden_size": 2**63}, "more than 2147483647"),
        ({"rope_theta": float("inf")}, "rope_theta is inf"),
        ({"rope_theta": float("nan")}, "rope_theta is nan"),
        ({"unheard_of": 10**30}, "at most 64 bits"),
        ({"unheard_of": "\ud800"}, "valid Unicode"),
    ],
)
def test_what_cannot_run_is_refused_by_name(
    tmp_path: Path, changes: dict[str, Any], cause: str
) -> None:
    with pytest.raises(CheckpointError, match=cause) as caught:
        hf_facts(tmp_path, **changes)
    assert "\n" not in str(caught.value)
    assert str(tmp_path) in str(caught.value)


@pytest.mark.parametrize("text", ["{", "[]", "\x00", "[" * 10**5, '{"a":' * 10**5])
def test_a_damaged_config_is_a_checkpoint_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"config\.json"):
        read_facts(str(tmp_path))


def test_gguf_maps_to_the_same_facts(tmp_path: Path) -> None:
    facts = read_facts(str(write_gguf(tmp_path / "m.gguf")))
    same = hf_facts(tmp_path / "hf", eos_token_id=1, bos_token_id=0)
    for name in ("architecture", "num_layers", "num_heads", "num_kv_heads", "head_size"):
        assert getattr(facts, name) == getattr(same, name)
    for name in ("hidden_size", "vocab_size", "max_position", "eos_token_ids", "bos_token_id"):
        assert getattr(facts, name) == getattr(same, name)
    assert facts.format == "gguf"
    assert facts.hf_config["rms_norm_eps"] == 1e-5
    assert facts.hf_config["rope_parameters"] == same.hf_config["rope_parameters"]
    assert facts.hf_config["tie_word_embeddings"] is True
    assert facts.has_rope_freqs is False


def test_every_end_of_a_gguf_ends_the_text(tmp_path: Path) -> None:
    ends = {f"tokenizer.ggml.{name}_token_id": i for i, name in enumerate(("eos", "eot", "eom"))}
    facts = read_facts(str(write_gguf(tmp_path / "m.gguf", {**LLAMA_GGUF, **ends})))
    assert facts.eos_token_ids == (0, 1, 2)


def test_gguf_tensors_say_what_the_metadata_does_not(tmp_path: Path) -> None:
    names = ("output.weight", "rope_freqs.weight", "blk.0.attn_q.bias")
    tensors = {**LLAMA_TENSORS, **dict.fromkeys(names, (64,))}
    facts = read_facts(str(write_gguf(tmp_path / "m.gguf", None, tensors)))
    assert facts.hf_config["tie_word_embeddings"] is False
    assert facts.hf_config["attention_bias"] is True
    assert facts.has_rope_freqs is True


def test_a_gguf_llama_with_a_window_is_mistral(tmp_path: Path) -> None:
    metadata = {**LLAMA_GGUF, "llama.attention.sliding_window": 128}
    facts = read_facts(str(write_gguf(tmp_path / "m.gguf", metadata)))
    assert (facts.architecture, facts.sliding_window) == ("MistralForCausalLM", 128)


@pytest.mark.parametrize("name", ["qwen2", "qwen3", "mistral"])
def test_gguf_families(tmp_path: Path, name: str) -> None:
    metadata = {key.replace("llama.", f"{name}."): value for key, value in LLAMA_GGUF.items()}
    metadata |= {"general.architecture": name, f"{name}.attention.key_length": 32}
    facts = read_facts(str(write_gguf(tmp_path / "m.gguf", metadata)))
    assert facts.architecture == f"{name.capitalize()}ForCausalLM"
    assert facts.hf_config["model_type"] == name
    assert facts.head_size == 32


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({"general.architecture": "mamba"}, "llama, mistral, qwen2, qwen3"),
        ({"llama.expert_count": 8}, "mixture of experts"),
        ({"split.count": 3}, "several parts"),
        ({"llama.attention.head_count_kv": [2, 1]}, "different sizes"),
        ({"llama.block_count": "two"}, "num_hidden_layers is 'two'"),
        ({"llama.rope.scaling.type": "longrope"}, "longrope"),
    ],
)
def test_gguf_refusals(tmp_path: Path, changes: dict[str, Any], cause: str) -> None:
    path = write_gguf(tmp_path / "m.gguf", {**LLAMA_GGUF, **changes})
    with pytest.raises(CheckpointError, match=cause):
        read_facts(str(path))


def test_a_type_the_loader_lacks_is_refused_before_loading(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", None, {"token_embd.weight": (100, 256)}, ggml_type=16)
    with pytest.raises(CheckpointError, match="stored as IQ2_XXS"):
        read_facts(str(path))
