"""A family's configuration with every field under its usual name, defaults filled in, none unknown.

A field that a family neither reads nor is known to be without effect may change what the model
computes: it is refused rather than passed over. Reads no files.
"""

from __future__ import annotations

from typing import Any

from vllm_lite.config.checkpoints.field_kinds import check_kind, shown
from vllm_lite.config.families.architecture import Architecture
from vllm_lite.config.values import Json, JsonView
from vllm_lite.errors import CheckpointError


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Read for every family, or seen in the tensors themselves (biases, a tied head).
READ_BY_ALL = _names(
    """
    architectures model_type dtype torch_dtype quantization_config
    vocab_size hidden_size intermediate_size hidden_act num_hidden_layers
    num_attention_heads num_key_value_heads head_dim rms_norm_eps
    max_position_embeddings n_positions max_seq_len seq_length max_sequence_length model_max_length
    rope_parameters rope_theta rope_scaling original_max_position_embeddings partial_rotary_factor
    sliding_window layer_types
    attention_bias qkv_bias mlp_bias tie_word_embeddings
    bos_token_id eos_token_id
    """
)
# Read by config.pooler, of models that pool.
_OF_POOLING = _names(
    """
    is_causal use_bidirectional_attention id2label num_labels problem_type sentence_transformers
    sbert_ce_default_activation_function classifier_from_token method is_matryoshka
    matryoshka_dimensions head_dtype pooling seq_pooling use_sep_token use_pad_token
    is_original_qwen3_reranker has_class_rows
    """
)
# What configurations carry of training, of generation, of other tasks and of other programs.
HARMLESS = _names(
    """
    transformers_version auto_map use_cache pretraining_tp gradient_checkpointing torchscript
    initializer_range initializer_factor init_std rescale_prenorm_residual
    attention_dropout attn_pdrop hidden_dropout resid_pdrop resid_dropout embd_pdrop
    embedding_dropout residual_dropout dropout classifier_dropout attention_probs_dropout_prob
    hidden_dropout_prob
    summary_type summary_use_proj summary_activation summary_proj_to_labels summary_first_dropout
    output_attentions output_hidden_states output_router_logits output_scores return_dict
    return_dict_in_generate use_return_dict chunk_size_feed_forward pruned_heads use_bfloat16
    tf_legacy_loss label2id finetuning_task task_specific_params
    tokenizer_class prefix bad_words_ids suppress_tokens
    begin_suppress_tokens max_length min_length max_new_tokens do_sample early_stopping num_beams
    num_beam_groups diversity_penalty temperature top_k top_p typical_p repetition_penalty
    length_penalty no_repeat_ngram_size encoder_no_repeat_ngram_size num_return_sequences
    remove_invalid_values exponential_decay_length_penalty transformers.js_config
    attn_implementation use_flash_attn flash_attn use_fused_rms_norm use_fused_mlp
    router_aux_loss_coef aux_loss_alpha vocab_file keys_to_ignore_at_inference name_or_path
    base_model_tp_plan base_model_pp_plan tokenizer_model_max_length cache_implementation n_ctx
    n_special predict_special_tokens is_llama_config custom_pipelines
    """
)
# Names that begin like this are a program's own notes, and what ends like this names a token.
_HARMLESS_PREFIXES = ("_", "unsloth_")
_HARMLESS_SUFFIX = "_id"
# The first of these that a configuration holds is the longest context it was made for.
LENGTHS = (
    *("max_position_embeddings", "n_positions", "max_seq_len", "seq_length"),
    *("max_sequence_length", "model_max_length"),
)
# Kinds of layers, where a list marks each by 0 or 1.
_MARKED = {
    "layer_types": ("full_attention", "sliding_attention"),
    "mlp_layer_types": ("dense", "sparse"),
}
# A field that is not known and says nothing.
_NOTHING: tuple[Any, ...] = (None, False, 0, "", [], {})


def family_config(path: str, row: Architecture, raw: JsonView, has_class_defaults: bool) -> Json:
    """The configuration `raw` of the model at `path`, as the rest of the engine reads it.

    With has_class_defaults, fields that are not there have the values of transformers' class.
    Raises CheckpointError for a field that would change the model and is not read.
    """
    known = READ_BY_ALL | HARMLESS | _OF_POOLING | row.reads | row.harmless | set(row.fixed)
    hf: Json = {}
    for name, value in _flat(row, raw).items():
        usual = row.aliases.get(name, name)
        if usual in row.fixed and value not in (None, row.fixed[usual]):
            raise CheckpointError(f"{path}: {name} is {shown(value)}, not {row.fixed[usual]!r}")
        is_note = name.startswith(_HARMLESS_PREFIXES) or name.endswith(_HARMLESS_SUFFIX)
        if not (usual in known or value in _NOTHING or is_note):
            raise CheckpointError(
                f"{path}: its configuration sets {name} to {shown(value)}, which {row.name} does "
                f"not read here and which may change what the model computes; if it does not, "
                f"""pass --hf-overrides '{{"{name}": null}}'"""
            )
        hf[usual] = _named_kinds(usual, value)
        if usual in row.reads or usual in READ_BY_ALL or usual in _OF_POOLING:
            check_kind(path, name, usual, hf[usual])
    lengths = [hf[name] for name in LENGTHS if hf.get(name) is not None]
    if lengths:
        hf["max_position_embeddings"] = lengths[0]
    kinds = hf.get("layer_types")
    if isinstance(kinds, list):
        hf.setdefault("num_hidden_layers", len(kinds))
    return {**(row.defaults if has_class_defaults else row.own_defaults), **hf}


def _named_kinds(name: str, value: Any) -> Any:
    names = _MARKED.get(name)
    if names is None or not isinstance(value, list) or not all(kind in (0, 1) for kind in value):
        return value
    return [names[int(kind)] for kind in value]


def _flat(row: Architecture, raw: JsonView) -> Json:
    """`raw` with the fields of those that hold others, unless it has a field of that name."""
    nested = [raw[name] for name in row.nested if isinstance(raw.get(name), dict)]
    own = {name: value for name, value in raw.items() if name not in row.nested}
    return {**{name: value for fields in nested for name, value in fields.items()}, **own}


def layer_windows(path: str, row: Architecture, hf: JsonView, count: int) -> tuple[int | None, ...]:
    """Of each layer: how many tokens it looks back, itself included; None is all of them.

    Of a layer with chunks, how many tokens they have.
    """
    if row.windows == "around":
        return _around(path, hf, count)
    is_chunked = row.windows == "chunked"
    key = "attention_chunk_size" if is_chunked else "sliding_window"
    local = "chunked_attention" if is_chunked else "sliding_attention"
    window, kinds = hf.get(key), hf.get("layer_types")
    known = ("full_attention", local) if row.mixer == "attention" else ()
    _check_kinds(path, kinds, count, known)
    if isinstance(earlier := hf.get("sliding_window_size"), int):
        window = earlier + 1
    is_off = "use_sliding_window" in row.reads and not hf.get("use_sliding_window")
    if not window or is_off:
        return (None,) * count
    if not isinstance(window, int) or isinstance(window, bool) or window < 1:
        raise CheckpointError(
            f"{path}: {key} is {window!r} in its configuration, not a positive number"
        )
    if kinds is not None:
        return tuple(window if kind == local else None for kind in kinds)
    if is_chunked:
        return tuple(window if here else None for here in rotated_layers(path, hf, count))
    if row.windows == "every":
        return (window,) * count
    if row.windows == "switched":
        # The first max_window_layers layers attend to everything.
        first = hf.get("max_window_layers", 28)
        return tuple(window if i >= first else None for i in range(count))
    if row.windows in ("pattern", "pattern from full"):
        # Each period ends, or begins, with a layer that attends to everything.
        period = hf.get("sliding_window_pattern") or 6
        if not isinstance(period, int):
            raise CheckpointError(
                f"{path}: sliding_window_pattern is {period!r} in its configuration, not a number, "
                "and there are no layer_types"
            )
        first = 1 if row.windows == "pattern" else 0
        return tuple(window if (i + first) % period else None for i in range(count))
    if row.windows == "attention_types":
        types = _attention_types(path, hf.get("attention_types"), count)
        return tuple(window if kind == "local" else None for kind in types)
    return (None,) * count


def _around(path: str, hf: JsonView, count: int) -> tuple[int | None, ...]:
    """Half of local_attention on each side, itself included."""
    kinds, period = hf.get("layer_types"), hf["global_attn_every_n_layers"]
    _check_kinds(path, kinds, count, ("full_attention", "sliding_attention"))
    if kinds is None:
        kinds = [
            "sliding_attention" if i % max(period, 1) else "full_attention" for i in range(count)
        ]
    window = hf["local_attention"] // 2 + 1
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)


def _attention_types(path: str, types: Any, count: int) -> list[str]:
    """The kind of each layer, of GPT-Neo's [[kinds, repeats], ...]; by default in turn."""
    try:
        kinds = [kind for group, repeats in types or [] for kind in list(group) * repeats]
        kinds = kinds if types else (["global", "local"] * count)[:count]
    except (TypeError, ValueError):
        kinds = []
    if len(kinds) != count or not set(kinds) <= {"global", "local"}:
        raise CheckpointError(
            f"{path}: attention_types is {shown(types)} in its configuration, which does not name "
            f"{count} layers global or local"
        )
    return kinds


def rotated_layers(path: str, hf: JsonView, count: int) -> list[bool]:
    """Of each layer: whether positions rotate it. One in no_rope_layer_interval they do not, or
    those that no_rope_layers marks by 0."""
    marks, period = hf.get("no_rope_layers"), hf.get("no_rope_layer_interval")
    if not marks and isinstance(period, int) and period > 0:
        return [(i + 1) % period != 0 for i in range(count)]
    if not isinstance(marks, list) or len(marks) < count:
        raise CheckpointError(f"{path}: no_rope_layers is not a list of {count} numbers")
    return [bool(mark) for mark in marks[:count]]


def _check_kinds(path: str, kinds: Any, count: int, known: tuple[str, ...]) -> None:
    if kinds is None:
        return
    if not isinstance(kinds, list) or len(kinds) != count:
        size = len(kinds) if isinstance(kinds, list) else "no"
        raise CheckpointError(f"{path}: layer_types names {size} layers of {count}")
    for kind in kinds:
        if known and kind not in known:
            raise CheckpointError(
                f"{path}: layer_types has {kind!r}; supported are {' and '.join(known)}"
            )
