"""Encoders in GGUF files as llama.cpp's converter writes them, Jina's in other files too."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
import torch.nn.functional as F
from gguf.constants import GGMLQuantizationType as GGML
from gguf.quants import quantize
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from torch import Tensor

from tests.models.checkpoints import make_model
from tests.models.encoders.cases import TINY, make_encoder
from tests.models.encoders.test_encoders import expected, hidden_states, prompts
from tests.models.encoders.test_engine import answers, engine
from tests.models.runner import load
from vllm_lite import PoolingParams
from vllm_lite.config.engine_args import EngineArgs
from vllm_lite.errors import CheckpointError
from vllm_lite.layers.score_terms import alibi_slopes
from vllm_lite.tokenizer.gguf_tokenizer import tokenizer_from_gguf

IDS = max(prompts(), key=len)


def is_rounded(name: str, tensor: Tensor) -> bool:
    """Whether a file of a quantised type holds it in that type."""
    return tensor.dim() == 2 and "position" not in name and "token_type" not in name


def write(
    path: Path,
    name: str,
    config: dict[str, Any],
    tensors: dict[str, Tensor],
    tokens: list[str] | None = None,
    kind: GGML = GGML.F32,
    **fields: Any,
) -> Path:
    """The file of a model with Hugging Face's names, with `fields` beside its sizes.

    `kind` is the type of its matrices; tables of positions and of token types are floats.
    """
    writer = gguf.GGUFWriter(path, name)
    sizes = {
        "context_length": "max_position_embeddings",
        "embedding_length": "hidden_size",
        "feed_forward_length": "intermediate_size",
        "attention.head_count": "num_attention_heads",
        "block_count": "num_hidden_layers",
    }
    for key, field in sizes.items():
        writer.add_uint32(f"{name}.{key}", config[field])
    eps = config.get("norm_eps", config.get("layer_norm_eps"))
    writer.add_float32(f"{name}.attention.layer_norm_epsilon", eps)
    writer.add_bool(f"{name}.attention.causal", False)
    for key, value in fields.items():
        adders = {float: writer.add_float32, list: writer.add_array}
        add = adders.get(type(value), writer.add_uint32)
        add(f"{name}.{key.replace('__', '.')}", value)
    if tokens:
        writer.add_token_list(tokens)
    arch = next(key for key, own in gguf.MODEL_ARCH_NAMES.items() if own == name)
    names = gguf.get_tensor_name_map(arch, config["num_hidden_layers"])
    for key, tensor in tensors.items():
        written = names.get_name(key, (".weight", ".bias"))
        written = key if key.startswith("cls.") else written
        if written is None:
            continue
        values = tensor.float().contiguous().numpy()
        own = kind if is_rounded(key, tensor) else GGML.F32
        writer.add_tensor(written, quantize(values, own), raw_dtype=own)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


WINDOWS = {"attention__sliding_window": 8, "attention__sliding_window_pattern": 3}
THETAS = {"rope__freq_base": 160000.0, "rope__freq_base_swa": 10000.0}


@pytest.mark.parametrize(
    ("case", "name", "fields", "pooling"),
    [
        ("BertModel", "bert", {"pooling_type": 1}, "MEAN"),
        ("NomicBertModel", "nomic-bert", {"rope__freq_base": 1000.0, "pooling_type": 3}, "LAST"),
        ("ModernBertModel", "modern-bert", WINDOWS | THETAS, "CLS"),
    ],
)
def test_files_are_transformers_models(
    case: str, name: str, fields: dict[str, Any], pooling: str, tmp_path: Path
) -> None:
    reference = make_encoder(case)
    reference.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    tensors = load_file(tmp_path / "model.safetensors")
    path = write(tmp_path / "model.gguf", name, config, tensors, **fields)
    model = load(path, runner="pooling")
    (got,) = hidden_states(model, [IDS])
    torch.testing.assert_close(got, expected(reference, IDS)[0], atol=1e-4, rtol=0)
    facts = EngineArgs(model=str(path), skip_tokenizer_init=True).create_engine_config().facts
    assert facts.pooling is not None and facts.pooling.seq_pooling_type == pooling


def without_padding(config: dict[str, Any], tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """RoBERTa's tensors as llama.cpp has them: the positions of padding are cut off."""
    first, table = config["pad_token_id"] + 1, "embeddings.position_embeddings.weight"
    config["max_position_embeddings"] -= first
    own = {name.removeprefix("roberta."): tensor for name, tensor in tensors.items()}
    return own | {table: own[table][first:]}


def of_modern_bert(config: dict[str, Any], tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {
        name.removeprefix("model.").replace("classifier.", "classifier.out_proj."): tensor
        for name, tensor in tensors.items()
    }


def stored(case: str, path: Path, **changes: Any) -> tuple[Any, dict[str, Any], dict[str, Tensor]]:
    """A reference, its configuration and its tensors."""
    reference = make_encoder(case, **changes)
    reference.save_pretrained(path)
    config = json.loads((path / "config.json").read_text())
    return reference, config, load_file(path / "model.safetensors")


@pytest.mark.parametrize("case", ["RobertaModel", "XLMRobertaModel"])
def test_a_file_of_bert_may_hold_roberta(case: str, tmp_path: Path) -> None:
    reference, config, tensors = stored(case, tmp_path)
    tensors = without_padding(config, tensors)
    path = write(tmp_path / "model.gguf", "bert", config, tensors, pooling_type=2)
    (got,) = hidden_states(load(path, runner="pooling"), [IDS])
    torch.testing.assert_close(got, expected(reference, IDS)[0], atol=1e-4, rtol=0)


@pytest.mark.parametrize(
    ("case", "name", "change", "fields"),
    [
        ("XLMRobertaForSequenceClassification", "bert", without_padding, {}),
        (
            "ModernBertForSequenceClassification",
            "modern-bert",
            of_modern_bert,
            WINDOWS | THETAS,
        ),
    ],
)
def test_rerankers_have_classes(
    case: str, name: str, change: Any, fields: dict[str, Any], tmp_path: Path
) -> None:
    own = {"classifier_pooling": "mean"} if name == "modern-bert" else {}
    reference, config, tensors = stored(case, tmp_path, **own)
    fields = {**fields, "pooling_type": 4, "classifier__output_labels": ["no", "maybe", "yes"]}
    path = write(tmp_path / "model.gguf", name, config, change(config, tensors), **fields)
    with engine(path) as llm:
        assert llm.llm_engine.config.facts.pooling.id2label == ("no", "maybe", "yes")
        found = answers(llm, prompts(), PoolingParams(task="classify", use_activation=False))
    for ids, logits in zip(prompts(), found, strict=True):
        want = expected(reference, ids)[1]
        torch.testing.assert_close(logits, want, atol=1e-4, rtol=0)


def qwen3_file(path: Path, reference: Any, tensors: dict[str, Tensor], **fields: Any) -> Path:
    """The file of a tiny Qwen3 with words for answers, and further tensors."""
    config = {**reference.config.to_dict(), "layer_norm_eps": 1e-6}
    sizes = {
        "head_count_kv": config["num_key_value_heads"],
        "key_length": config["head_dim"],
        "value_length": config["head_dim"],
        "layer_norm_rms_epsilon": config["rms_norm_eps"],
    }
    fields |= {f"attention__{key}": value for key, value in sizes.items()}
    fields["rope__freq_base"] = float(config["rope_parameters"]["rope_theta"])
    own = {k: x for k, x in reference.state_dict().items() if k != "lm_head.weight"}
    tokens = [{11: "no", 42: "yes"}.get(i, f"<{i}>") for i in range(config["vocab_size"])]
    return write(path / "model.gguf", "qwen3", config, own | tensors, tokens, **fields)


@torch.inference_mode()
def test_qwen3_s_rerankers_compare_yes_with_no(tmp_path: Path) -> None:
    reference = make_model("qwen3", num_hidden_layers=1)
    tensors = {"cls.output.weight": reference.lm_head.weight[[42, 11]]}
    fields = {"pooling_type": 4, "classifier__output_labels": ["yes", "no"]}
    with engine(qwen3_file(tmp_path, reference, tensors, **fields)) as llm:
        found = answers(llm, prompts(), PoolingParams())
    for ids, got in zip(prompts(), found, strict=True):
        want = reference(torch.tensor([ids])).logits[0, -1, [11, 42]].softmax(-1)[1:]
        torch.testing.assert_close(got, want, atol=1e-4, rtol=0)


@torch.inference_mode()
def test_a_decoder_s_file_that_pools_embeds(tmp_path: Path) -> None:
    reference = make_model("qwen3")
    with engine(qwen3_file(tmp_path, reference, {}, pooling_type=3)) as llm:
        found = answers(llm, prompts(), PoolingParams(task="embed"))
    for ids, got in zip(prompts(), found, strict=True):
        want = reference.model(torch.tensor([ids])).last_hidden_state[0, -1]
        torch.testing.assert_close(got, F.normalize(want, dim=0), atol=1e-4, rtol=0)


@pytest.mark.parametrize("left_out", ["classifier.dense", "classifier.out_proj", "classifier"])
def test_rerankers_without_their_layers_are_refused(left_out: str, tmp_path: Path) -> None:
    _, config, tensors = stored("XLMRobertaForSequenceClassification", tmp_path)
    kept = {k: x for k, x in without_padding(config, tensors).items() if left_out not in k}
    path = write(tmp_path / "m.gguf", "bert", config, kept, pooling_type=4)
    with pytest.raises(CheckpointError, match=r"is a reranker .* use the safetensors checkpoint"):
        load(path, runner="pooling")


JINA: dict[str, Any] = {
    **{key: value for key, value in TINY.items() if not key.endswith("_id")},
    "architectures": ["JinaBertForMaskedLM"],
    "model_type": "bert",
    "num_attention_heads": 6,
    "layer_norm_eps": 1e-12,
    "type_vocab_size": 2,
    "position_embedding_type": "alibi",
    "feed_forward_type": "geglu",
    "emb_pooler": "mean",
}


def jina_tensors(size: int = 48, inner: int = 80) -> dict[str, Tensor]:
    shapes: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings.weight": (131, size),
        "embeddings.token_type_embeddings.weight": (2, size),
        "embeddings.LayerNorm.weight": (size,),
        "embeddings.LayerNorm.bias": (size,),
    }
    for layer in (f"encoder.layer.{i}" for i in range(2)):
        for what in ("self.query", "self.key", "self.value", "output.dense"):
            shapes[f"{layer}.attention.{what}.weight"] = (size, size)
            shapes[f"{layer}.attention.{what}.bias"] = (size,)
        for norm in ("attention.output.LayerNorm", "mlp.layernorm"):
            shapes |= {f"{layer}.{norm}.weight": (size,), f"{layer}.{norm}.bias": (size,)}
        shapes[f"{layer}.mlp.gated_layers.weight"] = (2 * inner, size)
        shapes |= {f"{layer}.mlp.wo.weight": (size, inner), f"{layer}.mlp.wo.bias": (size,)}
    torch.manual_seed(5)
    return {name: torch.randn(shape) * 0.25 for name, shape in shapes.items()}


def jina_hidden_states(tensors: dict[str, Tensor], ids: list[int], heads: int = 6) -> Tensor:
    """By the formulas: slopes times the distance, GELU of a gate, norms of the sums."""

    def linear(name: str, x: Tensor) -> Tensor:
        return F.linear(x, tensors[f"{name}.weight"], tensors.get(f"{name}.bias"))

    def norm(name: str, x: Tensor) -> Tensor:
        return F.layer_norm(
            x, x.shape[1:], tensors[f"{name}.weight"], tensors[f"{name}.bias"], 1e-12
        )

    types = tensors["embeddings.token_type_embeddings.weight"][0]
    x = norm(
        "embeddings.LayerNorm",
        tensors["embeddings.word_embeddings.weight"][torch.tensor(ids)] + types,
    )
    token = torch.arange(len(ids))
    bias = -torch.tensor(alibi_slopes(heads))[:, None, None] * (token[:, None] - token).abs()
    for layer in (f"encoder.layer.{i}" for i in range(2)):
        at = f"{layer}.attention"
        q, k, v = (
            linear(f"{at}.self.{part}", x).view(len(ids), heads, -1).transpose(0, 1)
            for part in ("query", "key", "value")
        )
        mixed = F.scaled_dot_product_attention(q, k, v, bias).transpose(0, 1).reshape(x.shape)
        x = norm(f"{at}.output.LayerNorm", x + linear(f"{at}.output.dense", mixed))
        gate, up = linear(f"{layer}.mlp.gated_layers", x).chunk(2, dim=1)
        x = norm(f"{layer}.mlp.layernorm", x + linear(f"{layer}.mlp.wo", F.gelu(gate) * up))
    return x


@pytest.mark.parametrize("is_file", [False, True], ids=["safetensors", "gguf"])
def test_jina_s_slopes_fall_on_both_sides(is_file: bool, tmp_path: Path) -> None:
    tensors = jina_tensors()
    path = tmp_path / "model.gguf" if is_file else tmp_path
    if is_file:
        write(path, "jina-bert-v2", JINA, tensors)
    else:
        (tmp_path / "config.json").write_text(json.dumps(JINA))
        save_file({f"bert.{k}": x for k, x in tensors.items()}, tmp_path / "model.safetensors")
    (got,) = hidden_states(load(path, runner="pooling"), [IDS])
    torch.testing.assert_close(got, jina_hidden_states(tensors, IDS), atol=1e-4, rtol=0)


TEXTS = (
    "Hello, world! don't",
    "na\u00efve caf\u00e9 \u5317\u4eac unbelievable",
    "[MASK] a [SEP]",
    "",
)


def test_word_pieces_are_those_of_transformers() -> None:
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "hello", "world", "naive", "un", "!"]
    words += [",", "'", "don", "t"]
    words += ["##bel", "##ie", "##vable", "\u5317", "cafe", "a", "##s"]
    theirs = Tokenizer(
        models.WordPiece(vocab={word: i for i, word in enumerate(words)}, unk_token="[UNK]")
    )
    theirs.normalizer = normalizers.BertNormalizer(lowercase=True)
    theirs.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    theirs.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    theirs.add_special_tokens(words[:5])
    marked = [
        w if i < 5 else w.removeprefix("##") if "##" in w else f"\u2581{w}"
        for i, w in enumerate(words)
    ]
    keys = {"unknown": 1, "bos": 2, "eos": 3, "seperator": 3, "padding": 0, "mask": 4}
    ours = tokenizer_from_gguf(
        {
            "tokenizer.ggml.model": "bert",
            "tokenizer.ggml.tokens": marked,
            "tokenizer.ggml.token_type": [3] * 5 + [1] * (len(words) - 5),
            **{f"tokenizer.ggml.{key}_token_id": i for key, i in keys.items()},
        }
    ).backend
    for text in TEXTS:
        assert ours.encode(text).ids == theirs.encode(text).ids
    ours_pair, theirs_pair = ours.encode("hello", "world"), theirs.encode("hello", "world")
    assert (ours_pair.ids, ours_pair.type_ids) == (theirs_pair.ids, theirs_pair.type_ids)


def test_unigrams_are_those_of_xlm_roberta() -> None:
    pieces = [("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)]
    pieces += [
        ("\u2581hello", -3.0),
        ("\u2581", -5.0),
        ("wor", -4.0),
        ("ld", -4.5),
        ("\u2581world", -9.0),
    ]
    keys = {"unknown": 3, "bos": 0, "eos": 2, "seperator": 2, "padding": 1}
    ours = tokenizer_from_gguf(
        {
            "tokenizer.ggml.model": "t5",
            "tokenizer.ggml.tokens": [piece for piece, _ in pieces],
            "tokenizer.ggml.scores": [score for _, score in pieces],
            "tokenizer.ggml.token_type": [3, 3, 3, 2, *[1] * 5],
            **{f"tokenizer.ggml.{key}_token_id": i for key, i in keys.items()},
        }
    ).backend
    assert ours.encode("hello  world").ids == [0, 4, 8, 2]
    assert ours.encode("hello", "world").ids == [0, 4, 2, 2, 8, 2]
    assert ours.decode([0, 4, 8, 2]) == "hello world"
