"""Mistral's own layout, params.json and consolidated.safetensors, gives the model of the other."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.checkpoints import write_gguf
from tests.models.checkpoints import make_model, save
from tests.models.quantized_checkpoints import scaled, write_pair
from tests.models.runner import PagedRunner, load
from tests.unit.tokenizer.tekken import write_tekken
from vllm_lite import LLM, SamplingParams
from vllm_lite.errors import CheckpointError, UsageError
from vllm_lite.loader.mistral_files import as_hugging_face
from vllm_lite.loader.safetensors import SafetensorsFile

IDS = [5, 9, 2, 77, 130, 0, 31, 8, 8, 60, 61, 62]
FIELDS = {
    "hidden_size": "dim",
    "num_hidden_layers": "n_layers",
    "intermediate_size": "hidden_dim",
    "num_attention_heads": "n_heads",
    "num_key_value_heads": "n_kv_heads",
    "head_dim": "head_dim",
    "rms_norm_eps": "norm_eps",
    "vocab_size": "vocab_size",
    "sliding_window": "sliding_window",
    "tie_word_embeddings": "tied_embeddings",
    "max_position_embeddings": "max_position_embeddings",
}
NAMES = (
    (r"model\.embed_tokens\.", "tok_embeddings."),
    (r"lm_head\.", "output."),
    (r"model\.", ""),
    (r"self_attn\.([qkvo])_proj", r"attention.w\1"),
    (r"post_attention_layernorm", "ffn_norm"),
    (r"input_layernorm", "attention_norm"),
    (r"mlp\.|block_sparse_moe\.", "feed_forward."),
    (r"gate_proj", "w1"),
    (r"down_proj", "w2"),
    (r"up_proj", "w3"),
    (r"weight_scale", "qscale_weight"),
    (r"input_scale", "qscale_act"),
)
YARN = {"factor": 4.0, "original_max_position_embeddings": 32, "beta": 16.0, "alpha": 2.0}
SCALING = {"original_max_position_embeddings": 32, "beta": 0.7}
# Family, its changes, and what params.json says beside the sizes.
MODELS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "dense": ("mistral", {"sliding_window": None, "head_dim": 12}, {}),
    "window": ("mistral", {"sliding_window": 5, "tie_word_embeddings": True}, {}),
    "windows": (
        "ministral",
        {"sliding_window": 5, "layer_types": ["full_attention", "sliding_attention"]},
        {"sliding_window": [None, 5]},
    ),
    "experts": ("mixtral", {"head_dim": 10}, {"moe": {"num_experts": 5, "num_experts_per_tok": 2}}),
    "yarn": (
        "mistral",
        {
            "sliding_window": None,
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 500.0,
                "factor": 4.0,
                "original_max_position_embeddings": 32,
                "beta_fast": 16.0,
                "beta_slow": 2.0,
            },
        },
        {"yarn": YARN},
    ),
    "scaled queries": (
        "ministral3",
        {
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 500.0,
                "factor": 4.0,
                "original_max_position_embeddings": 8,
                "beta_fast": 16.0,
                "beta_slow": 2.0,
                "attention_factor": 1.0,
                "llama_4_scaling_beta": 0.7,
            },
        },
        {
            "yarn": {**YARN, "original_max_position_embeddings": 8, "apply_scale": False},
            "llama_4_scaling": {**SCALING, "original_max_position_embeddings": 8},
            "q_lora_rank": None,
            "vision_encoder": {"hidden_size": 8},
        },
    ),
}


def neighbours(tensor: torch.Tensor, num_heads: int) -> torch.Tensor:
    """The rows of a rotated layer with the pairs that Hugging Face's keep apart together."""
    if tensor.dim() == 0 or tensor.shape[0] == 1:
        return tensor
    rows = torch.arange(tensor.shape[0]).view(num_heads, 2, -1).transpose(1, 2).reshape(-1)
    return tensor[rows]


def own_name(name: str) -> str:
    for pattern, own in NAMES:
        name = re.sub(pattern, own, name)
    return name


def write_mistral(model: Path, path: Path, num_files: int = 1, **params: Any) -> Path:
    """The checkpoint `model` in Mistral's layout."""
    told = json.loads((model / "config.json").read_text())
    own = {name: told[hf] for hf, name in FIELDS.items() if told.get(hf) is not None}
    own["rope_theta"] = told["rope_parameters"]["rope_theta"]
    path.mkdir(exist_ok=True)
    (path / "params.json").write_text(json.dumps({**own, **params}))
    tensors = {}
    for name, tensor in load_file(model / "model.safetensors").items():
        if "q_proj" in name or "k_proj" in name:
            tensor = neighbours(tensor, own["n_heads" if "q_proj" in name else "n_kv_heads"])
        tensors[own_name(name)] = tensor.contiguous()
    tensors["vision_encoder.ln_pre.weight"] = torch.ones(3)
    if num_files == 1:
        save_file(tensors, path / "consolidated.safetensors")
        return path
    for i in range(num_files):
        part = {name: tensors[name] for name in sorted(tensors)[i::num_files]}
        save_file(part, path / f"consolidated-{i + 1:05}-of-{num_files:05}.safetensors")
    return path


def logits(path: Path, **options: Any) -> torch.Tensor:
    return PagedRunner(load(path, **options)).step({"a": IDS})["a"]


def refusal(path: Path, **options: Any) -> str:
    with pytest.raises((CheckpointError, UsageError)) as caught:
        load(path, **options)
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize("case", MODELS)
def test_both_layouts_are_one_model(case: str, tmp_path: Path) -> None:
    family, changes, params = MODELS[case]
    model = save(make_model(family, **changes), tmp_path / "hf")
    own = write_mistral(model, tmp_path / "own", 1 + len(case) % 3, **params)
    assert torch.equal(logits(own), logits(model))


def test_where_both_layouts_lie_together_the_options_choose(tmp_path: Path) -> None:
    """By default it is Hugging Face's, and either description goes with either file."""
    model = save(make_model("mistral", sliding_window=None), tmp_path)
    expected = logits(model)
    write_mistral(model, model)
    weights = model / "consolidated.safetensors"
    save_file({name: tensor * 0 for name, tensor in load_file(weights).items()}, weights)
    assert torch.equal(logits(model), expected)
    assert torch.equal(logits(model, config_format="mistral"), expected)
    assert not logits(model, load_format="mistral").any()
    assert not logits(model, config_format="mistral", load_format="mistral").any()
    (model / "config.json").unlink()
    assert torch.equal(logits(model), expected)
    assert "config.json" in refusal(model, config_format="hf")


@pytest.mark.parametrize(("act", "scheme"), [("TENSOR", "static"), ("NO_SCALES", "dynamic")])
def test_8_bit_floats_are_those_of_the_other_layout(act: str, scheme: str, tmp_path: Path) -> None:
    settings = {"quant_method": "fp8", "activation_scheme": scheme}
    quantise = scaled(torch.float8_e4m3fn, "tensor", scheme == "static")
    packed, _ = write_pair(tmp_path, settings, quantise, "mistral", sliding_window=None)
    given = {"qformat_weight": "fp8_e4m3", "qscheme_act": act}
    own = write_mistral(packed, tmp_path / "own", quantization=given)
    assert torch.equal(logits(own), logits(packed))


def test_compressed_tensors_keep_their_settings(tmp_path: Path) -> None:
    quantise = scaled(torch.float8_e4m3fn, "channel", False)
    group = {
        "targets": ["Linear"],
        "weights": {"num_bits": 8, "type": "float", "strategy": "channel"},
        "input_activations": {"num_bits": 8, "type": "float", "strategy": "token", "dynamic": True},
    }
    settings = {"config_groups": {"group_0": group}, "format": "float-quantized"}
    hf = {"quant_method": "compressed-tensors", **settings}
    packed, _ = write_pair(tmp_path, hf, quantise, "mistral", sliding_window=None)
    given = {"quant_method": "compressed_tensors", **settings}
    own = write_mistral(packed, tmp_path / "own", quantization=given)
    assert torch.equal(logits(own), logits(packed))


@pytest.mark.parametrize(
    ("params", "cause"),
    [
        ({"model_type": "mamba"}, "'mamba'"),
        ({"kv_lora_rank": 8}, "kv_lora_rank"),
        ({"moe": {"num_experts": 4}, "llama_4_scaling": SCALING}, "llama_4_scaling"),
        ({"moe": {"num_experts": 4, "num_shared_experts": 1}}, "num_shared_experts"),
        ({"moe": 3}, "moe is 3"),
        ({"multimodal": {"whisper_model_args": {"encoder_args": {}}}}, "whisper_model_args"),
        ({"yarn": {**YARN, "gamma": 2}}, "gamma"),
        (
            {"yarn": YARN, "llama_4_scaling": {**SCALING, "original_max_position_embeddings": 9}},
            "original_max_position_embeddings",
        ),
        ({"sliding_window": [None, 4, 8]}, "sliding_window"),
        ({"quantization": {"qformat_weight": "int4"}}, "int4"),
        ({"quantization": {"qformat_weight": "fp8_e4m3", "qscheme_act": "ROW"}}, "ROW"),
        ({"attention_gate": 1}, "attention_gate"),
        ({"n_heads": 0}, "num_attention_heads"),
        ({"n_heads": 3}, "n_heads"),
    ],
    ids=str,
)
def test_what_params_say_and_cannot_be_run_is_refused(
    params: dict[str, Any], cause: str, tmp_path: Path
) -> None:
    model = save(make_model("mistral", sliding_window=None), tmp_path / "hf")
    own = write_mistral(model, tmp_path / "own", **params)
    message = refusal(own)
    assert cause in message and str(own) in message


def test_a_lost_file_is_named_by_what_it_held(tmp_path: Path) -> None:
    model = save(make_model("mistral", sliding_window=None), tmp_path / "hf")
    own = write_mistral(model, tmp_path / "own", 3)
    (own / "consolidated-00002-of-00003.safetensors").unlink()
    assert "lacks" in refusal(own)
    (own / "params.json").rename(own / "config.json")
    assert "params.json" in refusal(own, hf_config_path=str(model), load_format="mistral")


def test_queries_of_some_heads_are_read_by_themselves(tmp_path: Path) -> None:
    """As ranks read them, each its own heads."""
    model = save(make_model("mistral", sliding_window=None), tmp_path / "hf")
    own = write_mistral(model, tmp_path / "own") / "consolidated.safetensors"
    file = as_hugging_face(SafetensorsFile(own))
    name = "model.layers.1.self_attn.q_proj.weight"
    expected = load_file(model / "model.safetensors")[name]
    assert file.entry(name)[1] == tuple(expected.shape)
    for start, end in ((0, 12), (12, 36), (24, 48)):
        got = file.read(name, (slice(start, end), slice(5, 30)))
        assert torch.equal(got, expected[start:end, 5:30])


def test_a_gguf_file_has_no_other_description(tmp_path: Path) -> None:
    message = refusal(write_gguf(tmp_path / "m.gguf"), config_format="mistral")
    assert "--config-format mistral" in message


def test_a_folder_of_this_layout_alone_is_all_that_a_chat_needs(tmp_path: Path) -> None:
    common = pytest.importorskip("mistral_common.tokens.tokenizers.mistral")
    request = pytest.importorskip("mistral_common.protocol.instruct.request")
    model = save(make_model("mistral", sliding_window=None, vocab_size=3100), tmp_path / "hf")
    own = write_mistral(model, tmp_path / "own")
    write_tekken(own / "tekken.json", "v3")
    messages = [{"role": "user", "content": "Grüße?"}]
    params = SamplingParams(max_tokens=20, temperature=0.0)
    options = {"dtype": "float32", "device": "cpu", "max_model_len": 128, "block_size": 8}
    with LLM(str(own), disable_frontend_multiprocessing=True, **options) as llm:
        (answer,) = llm.chat(messages, params, use_tqdm=False)
    tokenizer = common.MistralTokenizer.from_file(str(own / "tekken.json"))
    asked = request.ChatCompletionRequest.from_openai(messages)
    assert answer.prompt_token_ids == tokenizer.encode_chat_completion(asked).tokens
    assert answer.prompt == "<s>[INST]Grüße?[/INST]"
    assert answer.outputs[0].text == tokenizer.decode(answer.outputs[0].token_ids)
