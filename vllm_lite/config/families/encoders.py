"""Encoders: every token sees every other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from vllm_lite.config.families.architecture import Architecture, row
from vllm_lite.config.pooling import BOTH

_EMBED: dict[str, Any] = {"tasks": ("embed", "token_embed"), "seq_pooling": "CLS"}
_CLASSIFY: dict[str, Any] = {"tasks": ("classify", "token_classify"), "seq_pooling": "CLS"}
_TOKENS: dict[str, Any] = {"tasks": ("token_classify",)}
_SUFFIXES = {
    "Model": _EMBED,
    "ForSequenceClassification": _CLASSIFY,
    "ForTokenClassification": _TOKENS,
}
# What was once the size of BERT's pooler, and others' notes.
_NOTES = (
    "directionality pooler_fc_size pooler_num_attention_heads pooler_num_fc_layers "
    "pooler_size_per_head pooler_type output_past"
)
_EPSILON = "attention.layer_norm_epsilon"
_BERT: dict[str, Any] = {
    "is_causal": False,
    "gguf_fields": {_EPSILON: "layer_norm_eps"},
    "reads": "layer_norm_eps type_vocab_size",
    "harmless": _NOTES,
    "fixed": {"position_embedding_type": "absolute"},
}
_ROBERTA = {**_BERT, "reads": f"{_BERT['reads']} pad_token_id", "pads_positions": True}
_MPNET = {
    **_BERT,
    "reads": "layer_norm_eps pad_token_id",
    "fixed": {"pad_token_id": 1, "relative_attention_num_buckets": 32},
    "pads_positions": True,
}
_ELECTRA = {
    **_BERT,
    "reads": f"{_BERT['reads']} embedding_size",
    "harmless": f"{_NOTES} summary_last_dropout",
}
_DISTILBERT: dict[str, Any] = {
    "is_causal": False,
    "aliases": {
        "dim": "hidden_size",
        "n_heads": "num_attention_heads",
        "n_layers": "num_hidden_layers",
        "hidden_dim": "intermediate_size",
        "activation": "hidden_act",
    },
    # Sines are stored as if they were learned.
    "harmless": f"{_NOTES} sinusoidal_pos_embds tie_weights_ qa_dropout seq_classif_dropout",
}
_MODERNBERT: dict[str, Any] = {
    "is_causal": False,
    "aliases": {
        "hidden_activation": "hidden_act",
        "global_rope_theta": "rope_theta",
        "local_rope_theta": "rope_local_base_freq",
    },
    "own_defaults": {
        "global_attn_every_n_layers": 3,
        "rope_theta": 160000.0,
        "rope_local_base_freq": 10000.0,
    },
    "gguf_fields": {
        _EPSILON: "norm_eps",
        "attention.sliding_window": "local_attention",
        "hidden_activation": "hidden_act",
    },
    "gguf_seen": {"attention_bias": "blk.0.attn_qkv.bias", "norm_bias": "blk.0.ffn_norm.bias"},
    "reads": "norm_eps norm_bias local_attention global_attn_every_n_layers classifier_bias "
    "classifier_activation classifier_pooling rope_local_base_freq",
    "harmless": f"{_NOTES} decoder_bias deterministic_flash_attn initializer_cutoff_factor "
    "mlp_dropout repad_logits_with_grad sparse_pred_ignore_index sparse_prediction "
    "reference_compile layer_norm_eps position_embedding_type",
    "windows": "around",
}
_NOMIC: dict[str, Any] = {
    "is_causal": False,
    "gguf_fields": {_EPSILON: "layer_norm_eps"},
    "aliases": {
        "n_embd": "hidden_size",
        "n_head": "num_attention_heads",
        "n_layer": "num_hidden_layers",
        "n_inner": "intermediate_size",
        "layer_norm_epsilon": "layer_norm_eps",
        "rotary_emb_base": "rope_theta",
        "rotary_emb_fraction": "partial_rotary_factor",
        # Longer prompts would need another rotation.
        "max_trained_positions": "max_position_embeddings",
    },
    "reads": "layer_norm_eps type_vocab_size activation_function qkv_proj_bias mlp_fc1_bias "
    "mlp_fc2_bias",
    "harmless": f"{_NOTES} dense_seq_output fused_bias_fc fused_dropout_add_ln last_layer_subset "
    "pad_vocab_size_multiple rotary_scaling_factor scale_attn_weights use_xentropy",
    "fixed": {"position_embedding_type": "rope"},
}
_JINA: dict[str, Any] = {
    "is_causal": False,
    "gguf_fields": {_EPSILON: "layer_norm_eps"},
    "reads": "layer_norm_eps type_vocab_size",
    "harmless": f"{_NOTES} emb_pooler attn_implementation",
    "fixed": {"position_embedding_type": "alibi", "feed_forward_type": "geglu"},
}
_GTE: dict[str, Any] = {
    "is_causal": False,
    "reads": "layer_norm_eps type_vocab_size",
    "harmless": f"{_NOTES} pack_qkv unpad_inputs use_memory_efficient_attention",
    "fixed": {"position_embedding_type": "rope", "layer_norm_type": "layer_norm"},
}
_NEW = {**_GTE, "own_defaults": {"rope_theta": 10000.0}}


def _rows(
    family: str, module: str, fields: dict[str, Any], of: str = "", gguf: tuple[str, ...] = ()
) -> Iterator[Architecture]:
    """The rows of a family's classes by task; `of` is the family that it is under another name."""
    for suffix, task in _SUFFIXES.items():
        own: dict[str, Any] = {"model_class": of + suffix} if of else {}
        if of or suffix != "Model":
            own["like"] = f"{of or family}Model"
        else:
            own["gguf"] = gguf
        yield row(family + suffix, f"encoders.{module}", **fields, **task, **own)


ROWS = (
    *_rows("Bert", "bert", _BERT, gguf=("bert",)),
    row("BertForMaskedLM", "encoders.bert", like="BertModel", **_BERT, **_TOKENS),
    row(
        "BertSpladeSparseEmbeddingModel",
        "encoders.bert",
        model_class="BertForMaskedLM",
        like="BertModel",
        **_BERT,
        tasks=("embed", "token_embed"),
        seq_pooling="MAX",
    ),
    row(
        "HF_ColBERT",
        "encoders.bert",
        like="BertModel",
        **{**_BERT, "reads": f"{_BERT['reads']} colbert_dim dim projection_dim"},
        tasks=("token_embed",),
    ),
    *_rows("Roberta", "bert", _ROBERTA),
    *_rows("XLMRoberta", "bert", _ROBERTA, of="Roberta"),
    row(
        "BgeM3EmbeddingModel",
        "encoders.bert",
        like="RobertaModel",
        **_ROBERTA,
        tasks=("embed", "token_embed", "token_classify", BOTH),
        seq_pooling="CLS",
        # Weights of tokens are no probabilities; those of the first and the last one are left out,
        # as is the first one's vector.
        pooling={
            "activation": "identity",
            "num_labels": 1,
            "omitted": {"token_embed": (0, -1), "token_classify": (0, 2)},
        },
    ),
    *_rows("Camembert", "bert", _ROBERTA, of="Roberta"),
    *_rows("MPNet", "mpnet", _MPNET),
    # The scores of words are left out.
    *(
        row(
            f"{family}ForMaskedLM",
            f"encoders.{module}",
            model_class=f"{of}Model",
            like=f"{family}Model",
            **fields,
            **_EMBED,
        )
        for family, of, module, fields in (
            ("Roberta", "Roberta", "bert", _ROBERTA),
            ("XLMRoberta", "Roberta", "bert", _ROBERTA),
            ("Camembert", "Roberta", "bert", _ROBERTA),
            ("MPNet", "MPNet", "mpnet", _MPNET),
        )
    ),
    *_rows("Electra", "bert", _ELECTRA),
    *_rows("DistilBert", "distilbert", _DISTILBERT),
    row(
        "DistilBertForMaskedLM",
        "encoders.distilbert",
        like="DistilBertModel",
        **_DISTILBERT,
        **_TOKENS,
    ),
    *_rows("ModernBert", "modernbert", _MODERNBERT, gguf=("modern-bert",)),
    row("NomicBertModel", "encoders.rotated", gguf=("nomic-bert",), **_NOMIC, **_EMBED),
    row(
        "JinaBertModel",
        "encoders.rotated",
        like="BertModel",
        gguf=("jina-bert-v2",),
        **_JINA,
        **_EMBED,
    ),
    row(
        "JinaBertForMaskedLM",
        "encoders.rotated",
        model_class="JinaBertModel",
        like="BertModel",
        **_JINA,
        **_EMBED,
    ),
    row("GteModel", "encoders.rotated", **_GTE, **_EMBED),
    row(
        "GteForSequenceClassification",
        "encoders.rotated",
        like="GteModel",
        **_GTE,
        **_CLASSIFY,
    ),
    *(
        row(
            f"{name}{suffix}",
            "encoders.rotated",
            model_class=f"Gte{suffix}",
            like="GteModel",
            **_NEW,
            **_SUFFIXES[suffix],
        )
        for name in ("GteNew", "New")
        for suffix in ("Model", "ForSequenceClassification")
    ),
)
