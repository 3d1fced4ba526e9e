"""Facts of a checkpoint: one form from config.json, old and new, and from GGUF."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import transformers

from tests.checkpoints import LLAMA_GGUF, LLAMA_TENSORS, write_gguf, write_hf
from tests.unit.config.make_models_page import page
from tests.unit.config.write_defaults import class_defaults
from vllm_lite.config.checkpoints.architectures import ARCHITECTURES
from vllm_lite.config.checkpoints.checkpoint import ModelFacts, read_facts
from vllm_lite.config.checkpoints.family_config import READ_BY_ALL
from vllm_lite.config.checkpoints.field_kinds import KIND_OF
from vllm_lite.config.facts import UNLIMITED_POSITIONS
from vllm_lite.errors import CheckpointError

SWITCHED_ON = {"use_sliding_window": True, "sliding_window": 128}


def hf_facts(folder: Path, **changes: Any) -> ModelFacts:
    return read_facts(str(write_hf(folder, **changes)))


def test_sizes_are_read(tmp_path: Path) -> None:
    facts = hf_facts(tmp_path)
    assert (facts.num_layers, facts.num_heads, facts.num_kv_heads) == (2, 4, 2)
    assert (facts.hidden_size, facts.head_size, facts.vocab_size) == (64, 16, 100)
    assert (facts.max_position, facts.dtype, facts.format) == (512, "bfloat16", "hf")
    assert (facts.eos_token_ids, facts.bos_token_id) == ((2,), 1)
    assert facts.layer_windows == (None, None)


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
    ("family", "changes", "windows"),
    [
        ("Llama", {"sliding_window": 128}, (None, None)),
        ("Mistral", {"sliding_window": 128}, (128, 128)),
        ("Mistral", {}, (4096, 4096)),
        (
            "Mistral",
            {"sliding_window": 128, "layer_types": ["full_attention", "sliding_attention"]},
            (None, 128),
        ),
        ("Qwen2", {"sliding_window": 128}, (None, None)),
        ("Qwen2", SWITCHED_ON, (None, None)),
        ("Qwen2", {**SWITCHED_ON, "max_window_layers": 0}, (128, 128)),
        ("Qwen3", {**SWITCHED_ON, "max_window_layers": 1}, (None, 128)),
        ("Qwen3", {**SWITCHED_ON, "layer_types": ["sliding_attention"] * 2}, (128, 128)),
        ("Phi3", {}, (None, None)),
        ("Phi3", {"sliding_window": 128}, (128, 128)),
    ],
)
def test_each_layer_has_its_window(
    tmp_path: Path, family: str, changes: dict[str, Any], windows: tuple[int | None, ...]
) -> None:
    facts = hf_facts(tmp_path, architectures=[f"{family}ForCausalLM"], **changes)
    assert facts.layer_windows == windows


def test_without_its_window_a_model_is_as_long_as_the_window(tmp_path: Path) -> None:
    path = str(write_hf(tmp_path, architectures=["MistralForCausalLM"], sliding_window=128))
    facts = read_facts(path, disable_sliding_window=True)
    assert (facts.layer_windows, facts.max_position) == ((None, None), 128)
    assert facts.local_layers == (True, True)


def test_a_null_window_is_no_window(tmp_path: Path) -> None:
    config = write_hf(tmp_path, architectures=["MistralForCausalLM"]) / "config.json"
    config.write_text(config.read_text()[:-1] + ', "sliding_window": null}')
    assert read_facts(str(tmp_path)).layer_windows == (None, None)


@pytest.mark.parametrize("name", ["su", "yarn", "longrope"])
def test_longrope_has_older_names(name: str, tmp_path: Path) -> None:
    factors = {"short_factor": [1.0] * 8, "long_factor": [2.0] * 8}
    facts = hf_facts(tmp_path, rope_scaling={"type": name, **factors})
    assert facts.hf_config["rope_parameters"]["rope_type"] == "longrope"


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({"architectures": ["OtherLM"]}, ", ".join(ARCHITECTURES)),
        ({"architectures": None}, "without architectures"),
        ({"architectures": ["DeepseekV32ForCausalLM"]}, "DeepseekV32ForCausalLM, whose sparse"),
        ({"architectures": ["DeepseekV4ForCausalLM"]}, "DeepseekV4ForCausalLM, whose sparse"),
        ({"architectures": ["GlmMoeDsaForCausalLM"]}, "GlmMoeDsaForCausalLM, whose sparse"),
        ({"quantization_config": {"quant_method": "awq"}}, "quantised by awq"),
        ({"rope_scaling": {"rope_type": "longrope"}}, "longrope"),
        ({"rope_scaling": {"rope_type": "linear"}}, "rotary factor is None"),
        ({"num_attention_heads": 0}, "num_attention_heads is 0"),
        ({"hidden_size": "64"}, "hidden_size is '64'"),
        ({"num_key_value_heads": 3}, "cannot share"),
        ({"hidden_size": 2**63}, "more than 2147483647"),
        ({"rope_theta": float("inf")}, "rope_theta is inf"),
        ({"rope_theta": float("nan")}, "rope_theta is nan"),
        ({"unheard_of": 10**30}, "at most 64 bits"),
        ({"unheard_of": "\ud800"}, "valid Unicode"),
        ({"logit_scale": 0.25}, "sets logit_scale to 0.25"),
        ({"layer_types": ["full_attention"]}, "names 1 layers of 2"),
        ({"layer_types": ["full_attention", "linear_attention"]}, "linear_attention"),
    ],
)
def test_what_cannot_run_is_refused_by_name(
    tmp_path: Path, changes: dict[str, Any], cause: str
) -> None:
    with pytest.raises(CheckpointError, match=cause) as caught:
        hf_facts(tmp_path, **changes)
    assert "\n" not in str(caught.value)
    assert str(tmp_path) in str(caught.value)


@pytest.mark.parametrize(
    "architecture", [name for name, row in ARCHITECTURES.items() if not row.like]
)
def test_defaults_are_those_of_transformers_classes(architecture: str) -> None:
    row = ARCHITECTURES[architecture]
    written = json.loads(json.dumps(class_defaults(row)))
    assert {**written, **row.own_defaults} == row.defaults


@pytest.mark.parametrize(
    "architecture", [name for name, row in ARCHITECTURES.items() if not row.like]
)
def test_what_a_config_leaves_out_is_what_its_class_assumes(
    architecture: str, tmp_path: Path
) -> None:
    row = ARCHITECTURES[architecture]
    config = getattr(transformers, architecture).config_class()
    (tmp_path / "config.json").write_text(json.dumps({"architectures": [architecture]}))
    facts = read_facts(str(tmp_path))
    # Of fields that layers may have by themselves, those of the whole.
    config.allow_global_per_layer_attribute_access = True
    names = {own for own, usual in row.aliases.items() if usual == "num_attention_heads"}
    names = (*names, "num_attention_heads")
    heads = next((getattr(config, name) for name in names if hasattr(config, name)), 1)
    assert (facts.num_layers, facts.num_heads) == (config.num_hidden_layers, heads)
    assert (facts.hidden_size, facts.vocab_size) == (config.hidden_size, config.vocab_size)
    assert facts.head_size == getattr(config, "head_dim", None) or (config.hidden_size // heads)
    stated = row.own_defaults.get("max_position_embeddings", UNLIMITED_POSITIONS)
    longest = getattr(config, "max_position_embeddings", stated)
    if row.pads_positions:
        longest -= config.pad_token_id + 1
    assert facts.max_position == longest
    rope = getattr(config, "rope_parameters", None)
    if row.mixer == "attention" and rope:
        ours = facts.hf_config["rope_parameters"]
        for kind, said in (rope if "full_attention" in rope else {"": rope}).items():
            assert _that_matter(ours.get(kind, ours)) == _that_matter(said)
    assert facts.hf_config.get("tie_word_embeddings", False) == config.tie_word_embeddings
    assert facts.bos_token_id == config.bos_token_id
    eos = config.eos_token_id
    assert list(facts.eos_token_ids) == (
        eos if isinstance(eos, list) else [eos] * (eos is not None)
    )


def _that_matter(rope: dict[str, Any]) -> dict[str, Any]:
    """Rotary settings but factors of 1, the type under its new name."""
    kind = rope.get("rope_type") or rope["type"]
    numbers = {name: value for name, value in rope.items() if value != 1.0 and name != "type"}
    return numbers | {"rope_type": kind}


# What may be a number or a list of them, a number or a word, or anything.
SEVERAL_FORMS = """
    activation_sparsity_pattern
    mamba_d_head mamba_dt_rank moe_intermediate_size moe_layer_freq num_experts_per_tok
    num_ln_in_parallel_attn num_shared_expert sliding_window_pattern time_step_rank
    use_bidirectional_attention
"""


def test_each_field_that_a_family_reads_is_of_a_kind() -> None:
    read = {name for row in ARCHITECTURES.values() for name in row.reads}
    assert read <= KIND_OF.keys() | set(SEVERAL_FORMS.split()) | READ_BY_ALL


@pytest.mark.parametrize("value", [None, False, 0, "", [], {}])
def test_an_unknown_field_that_says_nothing_is_passed_over(tmp_path: Path, value: Any) -> None:
    config = write_hf(tmp_path) / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "logit_scale": value}))
    assert read_facts(str(tmp_path)).num_layers == 2


def test_an_unknown_field_can_be_declared_harmless(tmp_path: Path) -> None:
    path = str(write_hf(tmp_path, logit_scale=0.25))
    assert read_facts(path, hf_overrides={"logit_scale": None}).num_layers == 2


@pytest.mark.parametrize("kind", ["llama3", "yarn"])
def test_the_trained_length_may_stand_beside_the_scaling(tmp_path: Path, kind: str) -> None:
    scaling = {"rope_type": kind, "factor": 4.0}
    facts = hf_facts(tmp_path, rope_scaling=scaling, original_max_position_embeddings=128)
    assert facts.hf_config["rope_parameters"]["original_max_position_embeddings"] == 128


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


def test_a_gguf_without_an_end_of_turns_has_those_of_known_texts(tmp_path: Path) -> None:
    texts = ["<s>", "</s>", "<|end|>", "<|im_end|>", "<|call|>"]
    vocabulary: dict[str, Any] = {"tokenizer.ggml.tokens": texts}

    def ends(kinds: list[int], **header: Any) -> tuple[int, ...]:
        metadata = {**LLAMA_GGUF, **vocabulary, "tokenizer.ggml.token_type": kinds, **header}
        return read_facts(str(write_gguf(tmp_path / "m.gguf", metadata))).eos_token_ids

    assert ends([3, 3, 3, 3, 1]) == (1, 3, 2)  # a text alone makes no control token
    assert ends([3, 3, 3, 3, 3]) == (1, 3, 4)  # messages end with <|end|>, turns with <|call|>
    assert ends([3, 3, 3, 3, 3], **{"tokenizer.ggml.eot_token_id": 2}) == (1, 2)


@pytest.mark.parametrize("eos", [-1, [-1, 7], [7, True, None, "8"]])
def test_an_end_that_is_no_token_is_none(tmp_path: Path, eos: Any) -> None:
    facts = hf_facts(tmp_path, eos_token_id=eos, generation={"eos_token_id": -100})
    assert facts.eos_token_ids == ((7,) if isinstance(eos, list) else ())


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
    assert (facts.architecture, facts.layer_windows) == ("MistralForCausalLM", (128, 128))


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
        ({"general.architecture": "t5"}, "llama, mistral, .*qwen2, qwen3"),
        (
            {"general.architecture": "qwen2", "qwen2.expert_count": 8},
            "mixture of experts, .* are .*qwen3moe",
        ),
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
    path = write_gguf(tmp_path / "m.gguf", None, {"token_embd.weight": (100, 256)}, ggml_type=15)
    with pytest.raises(CheckpointError, match="stored as Q8_K"):
        read_facts(str(path))


def test_the_page_of_models_is_what_the_table_says() -> None:
    written = Path(__file__).parents[3] / "docs" / "models.md"
    advice = "run `python -m tests.unit.config.make_models_page > docs/models.md`"
    assert written.read_text() == page(), advice
