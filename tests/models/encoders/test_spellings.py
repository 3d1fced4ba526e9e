"""Names of tensors and fields as checkpoints have written them, before and beside transformers'."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.models.encoders.cases import make_encoder
from tests.models.encoders.test_encoders import expected, hidden_states, prompts
from tests.models.runner import load
from vllm_lite.errors import CheckpointError
from vllm_lite.models.encoders.mpnet import distance_buckets

Json = dict[str, Any]
Tensors = dict[str, Tensor]


def rewritten(path: Path, change: Callable[[Json, Tensors], Tensors]) -> Path:
    """The checkpoint with its configuration changed in place, and its tensors replaced."""
    file, config = path / "model.safetensors", path / "config.json"
    settings = json.loads(config.read_text())
    tensors = change(settings, load_file(file))
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, file)
    config.write_text(json.dumps(settings))
    return path


def tensorflow_names(config: Json, tensors: Tensors) -> Tensors:
    def own(name: str) -> str:
        weight, bias = "LayerNorm.weight", "LayerNorm.bias"
        return name.replace(weight, "LayerNorm.gamma").replace(bias, "LayerNorm.beta")

    # With the heads of training, and the numbers of positions.
    size = config["hidden_size"]
    more = {
        "embeddings.position_ids": torch.arange(64)[None],
        "cls.predictions.bias": torch.zeros(131),
        "cls.predictions.transform.LayerNorm.gamma": torch.zeros(size),
        "cls.seq_relationship.weight": torch.zeros(2, size),
    }
    return {f"bert.{own(name)}": tensor for name, tensor in tensors.items()} | more


def behind_model(config: Json, tensors: Tensors) -> Tensors:
    return {f"model.{name}": tensor for name, tensor in tensors.items()}


def behind_roberta(config: Json, tensors: Tensors) -> Tensors:
    more = {"lm_head.bias": torch.zeros(131), "lm_head.dense.bias": torch.zeros(48)}
    return {f"roberta.{name}": tensor for name, tensor in tensors.items()} | more


def of_openai_s_kernels(config: Json, tensors: Tensors) -> Tensors:
    """Nomic's own code: the fields of GPT-2, and other names of everything."""
    fields = {
        "hidden_size": "n_embd",
        "num_attention_heads": "n_head",
        "num_hidden_layers": "n_layer",
        "intermediate_size": "n_inner",
        "layer_norm_eps": "layer_norm_epsilon",
    }
    for usual, own in fields.items():
        config[own] = config.pop(usual)
    rope = config.pop("rope_parameters")
    del config["max_position_embeddings"], config["hidden_act"], config["head_dim"]
    config |= {
        "activation_function": "swiglu",
        "rotary_emb_base": rope["rope_theta"],
        "rotary_emb_fraction": 1.0,
        "rotary_emb_interleaved": False,
        "rotary_emb_scale_base": None,
        "rotary_scaling_factor": 2,
        "causal": False,
        "n_positions": 256,
        "max_trained_positions": 64,
        "prenorm": False,
        "qkv_proj_bias": False,
        "mlp_fc1_bias": False,
        "mlp_fc2_bias": False,
        "use_flash_attn": True,
        "fused_bias_fc": True,
        "scale_attn_weights": True,
    }
    return tensors


def of_alibaba_s_code(config: Json, tensors: Tensors) -> Tensors:
    config |= {
        "architectures": ["NewModel"],
        "position_embedding_type": "rope",
        "layer_norm_type": "layer_norm",
        "pack_qkv": True,
        "unpad_inputs": False,
        "logn_attention_scale": False,
        "logn_attention_clip1": False,
        "rope_theta": 100.0,
        "rope_scaling": {"type": "ntk", "factor": 8.0},
    }
    del config["rope_parameters"]
    more = {"classifier.weight": torch.zeros(2, 48), "classifier.bias": torch.zeros(2)}
    return {f"new.{name.removeprefix('gte.')}": tensor for name, tensor in tensors.items()} | more


def of_the_first_modernbert(config: Json, tensors: Tensors) -> Tensors:
    ropes = config.pop("rope_parameters")
    config["global_rope_theta"] = ropes["full_attention"]["rope_theta"]
    config["local_rope_theta"] = ropes["sliding_attention"]["rope_theta"]
    config |= {"global_attn_every_n_layers": 2, "reference_compile": False}
    config |= {"position_embedding_type": "absolute", "layer_norm_eps": 1e-5}
    assert config.pop("layer_types") == ["full_attention", "sliding_attention"] * 2
    return behind_model(config, tensors)


ROPES = {
    kind: {"rope_type": "default", "rope_theta": theta}
    for kind, theta in (("full_attention", 700.0), ("sliding_attention", 70.0))
}
NTK = {"rope_type": "linear", "rope_theta": 800.0, "factor": 8.0 ** (2 / 12)}


@pytest.mark.parametrize(
    ("case", "changes", "change"),
    [
        ("BertModel", {}, tensorflow_names),
        ("BertModel-odd", {}, behind_model),
        ("RobertaModel-odd", {}, behind_roberta),
        ("NomicBertModel", {}, of_openai_s_kernels),
        ("GteModel", {"rope_parameters": NTK}, of_alibaba_s_code),
        (
            "ModernBertModel",
            {"layer_types": ["full_attention", "sliding_attention"] * 2, "rope_parameters": ROPES},
            of_the_first_modernbert,
        ),
    ],
)
def test_other_spellings_are_the_same_model(
    case: str, changes: Json, change: Callable[[Json, Tensors], Tensors], tmp_path: Path
) -> None:
    reference = make_encoder(case, **changes)
    reference.save_pretrained(tmp_path)
    model = load(rewritten(tmp_path, change), runner="pooling")
    ids = max(prompts(), key=len)
    (got,) = hidden_states(model, [ids])
    torch.testing.assert_close(got, expected(reference, ids)[0], atol=1e-4, rtol=0)


@pytest.mark.parametrize("name", ["GteNewModel", "New", "GteNew"])
def test_gte_s_own_names_have_its_classes(name: str, tmp_path: Path) -> None:
    has_classes = not name.endswith("Model")
    case = "GteForSequenceClassification" if has_classes else "GteModel"
    reference = make_encoder(case, rope_parameters=NTK)

    def change(config: Json, tensors: Tensors) -> Tensors:
        stored = of_alibaba_s_code(config, {} if has_classes else tensors)
        config["architectures"] = [f"{name}ForSequenceClassification" if has_classes else name]
        if not has_classes:
            return stored
        return {name.replace("gte.", "new.", 1): tensor for name, tensor in tensors.items()}

    reference.save_pretrained(tmp_path)
    model: Any = load(rewritten(tmp_path, change), runner="pooling")
    ids = max(prompts(), key=len)
    (got,) = hidden_states(model, [ids])
    want, logits = expected(reference, ids)
    torch.testing.assert_close(got, want, atol=1e-4, rtol=0)
    if logits is not None:
        torch.testing.assert_close(model.pooled("classify", got[:1])[0], logits, atol=1e-4, rtol=0)


@pytest.mark.parametrize(
    ("case", "changes", "words"),
    [
        ("BertModel", {"position_embedding_type": "relative_key"}, "not 'absolute'"),
        ("BertModel", {"is_decoder": True}, "sets is_decoder to True"),
        ("BertModel", {"type_vocab_size": 5}, r"has the shape \[2, 48\], but .* \[5, 48\]"),
        ("BertModel", {"hidden_act": "gelu_10"}, "hidden_act 'gelu_10' is not supported"),
        ("RobertaModel", {"pad_token_id": None}, "pad_token_id is None"),
        ("RobertaModel", {"pad_token_id": 70}, "max_position_embeddings is -7"),
        ("BertForTokenClassification", {"num_labels": 4}, r"'classifier\.\w+' has the shape \[3"),
        ("ModernBertModel", {"layer_types": ["chunked"] * 4}, "layer_types has 'chunked'"),
        ("NomicBertModel", {"activation_function": "glu"}, "activation_function is 'glu'"),
        ("NomicBertModel", {"moe_every_n_layers": 2}, "sets moe_every_n_layers to 2"),
        ("GteModel", {"logn_attention_scale": True}, "sets logn_attention_scale to True"),
    ],
)
def test_options_that_are_not_computed_are_refused(
    case: str, changes: Json, words: str, tmp_path: Path
) -> None:
    make_encoder(case).save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match=words) as caught:
        load(tmp_path, runner="pooling", hf_overrides=changes)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("family", ["Roberta", "XLMRoberta", "Camembert", "MPNet"])
def test_vectors_need_no_scores_of_words(family: str, tmp_path: Path) -> None:
    base = make_encoder(f"{family}Model")
    whole = getattr(transformers, f"{family}ForMaskedLM")(base.config).eval()
    whole.base_model.load_state_dict(base.state_dict(), strict=False)
    whole.save_pretrained(tmp_path)
    batch = prompts()[:2]
    for ids, found in zip(batch, hidden_states(load(tmp_path), batch), strict=True):
        torch.testing.assert_close(found, expected(base, ids)[0], atol=1e-4, rtol=0)


def test_distances_share_numbers_as_in_transformers() -> None:
    distances = torch.arange(-600, 601)
    bucket = transformers.models.mpnet.modeling_mpnet.MPNetEncoder.relative_position_bucket
    assert torch.equal(distance_buckets(distances), bucket(distances))
