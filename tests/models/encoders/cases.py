"""Random tiny encoders, written by transformers: the cases of each architecture's options."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
import transformers
from transformers import PreTrainedModel

TINY: dict[str, Any] = {
    "vocab_size": 131,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "pad_token_id": 1,
    "bos_token_id": None,
    "eos_token_id": 2,
    "cls_token_id": None,
    "sep_token_id": None,
}
CLASSES = {"id2label": {0: "no", 1: "maybe", 2: "yes"}, "label2id": {"no": 0, "maybe": 1, "yes": 2}}


@dataclass(frozen=True)
class Encoder:
    """Classes of transformers by task, and further settings of each case."""

    architectures: tuple[str, ...]
    cases: dict[str, dict[str, Any]] = field(default_factory=lambda: {"": {}})


ODD = {
    "hidden_size": 51,
    "intermediate_size": 56,
    "num_hidden_layers": 3,
    "num_attention_heads": 3,
    "hidden_act": "relu",
    "layer_norm_eps": 1e-5,
}


def _by_task(family: str) -> tuple[str, ...]:
    return tuple(f"{family}{what}" for what in ("Model", *(f"For{kind}" for kind in _KINDS)))


_KINDS = ("SequenceClassification", "TokenClassification")
ENCODERS = {
    "bert": Encoder(
        (*_by_task("Bert"), "BertForMaskedLM"), {"": {}, "odd": {**ODD, "type_vocab_size": 3}}
    ),
    "roberta": Encoder(
        _by_task("Roberta"), {"": {}, "odd": {**ODD, "pad_token_id": 0, "type_vocab_size": 1}}
    ),
    "xlm_roberta": Encoder(
        _by_task("XLMRoberta"), {"": {"type_vocab_size": 1}, "odd": {**ODD, "pad_token_id": 4}}
    ),
    "mpnet": Encoder(_by_task("MPNet"), {"": {}, "odd": {**ODD, "max_position_embeddings": 300}}),
    "camembert": Encoder(_by_task("Camembert"), {"": {}, "odd": ODD}),
    "electra": Encoder(
        _by_task("Electra"), {"": {"embedding_size": 20}, "odd": {**ODD, "embedding_size": 51}}
    ),
    "distilbert": Encoder(
        (*_by_task("DistilBert"), "DistilBertForMaskedLM"),
        {
            "": {"hidden_dim": 80},
            "odd": {"dim": 51, "n_heads": 3, "hidden_dim": 56, "activation": "gelu_new"},
        },
    ),
    "modernbert": Encoder(
        _by_task("ModernBert"),
        {
            "": {"local_attention": 8, "num_hidden_layers": 4},
            "odd": {
                "hidden_size": 54,
                "num_attention_heads": 3,
                "intermediate_size": 56,
                "num_hidden_layers": 3,
                "hidden_activation": "relu",
                "classifier_activation": "silu",
                "classifier_pooling": "mean",
                "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
                "local_attention": 5,
                "attention_bias": True,
                "mlp_bias": True,
                "norm_bias": True,
                "classifier_bias": True,
                "rope_parameters": {
                    "full_attention": {"rope_type": "default", "rope_theta": 500.0},
                    "sliding_attention": {"rope_type": "default", "rope_theta": 50.0},
                },
            },
        },
    ),
    "nomic": Encoder(
        ("NomicBertModel",),
        {
            "": {},
            "odd": {
                "hidden_size": 54,
                "num_attention_heads": 3,
                "intermediate_size": 56,
                "type_vocab_size": 1,
                "rope_parameters": {"rope_type": "default", "rope_theta": 50.0},
            },
        },
    ),
    "gte": Encoder(
        ("GteModel", "GteForSequenceClassification"),
        {
            "": {},
            "odd": {
                "hidden_size": 54,
                "num_attention_heads": 3,
                "intermediate_size": 56,
                "type_vocab_size": 0,
                "hidden_act": "silu",
                "layer_norm_eps": 1e-5,
            },
        },
    ),
}
CASES = {
    f"{architecture}-{case}".removesuffix("-"): (architecture, {**TINY, **changes})
    for encoder in ENCODERS.values()
    for architecture in encoder.architectures
    for case, changes in encoder.cases.items()
}
# One architecture of each family, its options included.
MODELS = [name for name in CASES if name.partition("-")[0].endswith("Model")]


def make_encoder(case: str, **changes: Any) -> PreTrainedModel:
    """A random model in float32 whose weights, norms and biases all matter to its answer."""
    architecture, settings = CASES[case]
    model_class = getattr(transformers, architecture)
    torch.manual_seed(sum(map(ord, case)))
    classes = {} if architecture.endswith("Model") else CLASSES
    fields = {**settings, **classes, **changes}
    if "hidden_dim" in fields:  # DistilBERT's name of it
        del fields["intermediate_size"]
    config = model_class.config_class(**fields)
    config._attn_implementation = "eager"
    model = model_class(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            is_norm = "norm" in name.lower() and name.endswith("weight")
            parameter.normal_(1.0 if is_norm else 0.0, 0.25)
    return model
