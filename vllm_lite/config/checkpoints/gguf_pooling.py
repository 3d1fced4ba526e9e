"""Pooling of GGUF files: sentence-transformers' mode in the header, and the heads of rerankers.

llama.cpp's converter writes a reranker's head as the tensors cls, cls.norm and cls.output.
"""

from __future__ import annotations

from vllm_lite.config.checkpoints.architectures import ARCHITECTURES
from vllm_lite.config.checkpoints.gguf_header import GGUFFile
from vllm_lite.config.families.architecture import GENERATES
from vllm_lite.config.values import Json
from vllm_lite.errors import CheckpointError

# By the format's numbers.
_POOLING = {1: "MEAN", 2: "CLS", 3: "LAST"}
_RERANKS = 4
# Rerankers by the model beneath, and the layers of their heads.
_LAYERS = {
    "BertModel": ("cls", "cls.output"),
    "ModernBertModel": ("cls", "cls.norm", "cls.output"),
    "Qwen3ForCausalLM": ("cls.output",),
}
# The rows of a language model's cls.output.
_WORDS = ["yes", "no"]


def add_pooling(gguf: GGUFFile, config: Json) -> None:
    """Add to `config` how the file's model pools; raises CheckpointError for unknown heads."""
    kind, (name,) = gguf.of_architecture("pooling_type", 0), config["architectures"]
    heads = {tensor.rpartition(".")[0] for tensor in gguf.tensors if tensor.startswith("cls.")}
    if kind == _RERANKS or heads:
        _add_classes(gguf, config, name, heads)
    elif kind in _POOLING:
        config["seq_pooling"] = _POOLING[kind]
        if ARCHITECTURES[name].tasks[0] == "generate":
            config["architectures"] = [f"{_stem(name)}Model"]
    elif kind:
        raise CheckpointError(
            f"{gguf.path} pools by method {kind} of the format, which is not supported; use the "
            "safetensors checkpoint"
        )


def _add_classes(gguf: GGUFFile, config: Json, name: str, heads: set[str]) -> None:
    labels = [str(label) for label in gguf.of_architecture("classifier.output_labels", ())]
    is_made = name == "Qwen3ForCausalLM"
    if heads != set(_LAYERS.get(name, ())) or (is_made and labels != _WORDS):
        found = f"the layers {', '.join(sorted(heads))}" if heads else "no layer"
        raise CheckpointError(
            f"{gguf.path} is a reranker of {name} with {found} for its classes "
            f"({', '.join(labels) or 'without names'}), which is not supported; use the "
            "safetensors checkpoint"
        )
    stem = _stem(name)
    config["architectures"] = [f"{stem}ForSequenceClassification"]
    if is_made:
        config |= {"classifier_from_token": _WORDS[::-1], "has_class_rows": True}
        return
    config["num_labels"] = gguf.tensors["cls.output.weight"].shape[0]
    config["id2label"] = {str(i): label for i, label in enumerate(labels)}
    if stem == "ModernBert":
        # As llama.cpp computes them.
        config |= {"classifier_pooling": "mean", "classifier_activation": "gelu"}
        config["classifier_bias"] = "cls.bias" in gguf.tensors


def _stem(name: str) -> str:
    ending = next(end for end in (*GENERATES, "Model") if name.endswith(end))
    return name.removesuffix(ending)
