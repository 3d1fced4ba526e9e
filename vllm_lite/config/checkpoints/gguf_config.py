"""A GGUF header's metadata as the Hugging Face configuration of the same model."""

from __future__ import annotations

from typing import Any

from vllm_lite.config.checkpoints.architectures import ARCHITECTURES, GGUF_ARCHITECTURES
from vllm_lite.config.checkpoints.family_config import READ_BY_ALL
from vllm_lite.config.checkpoints.gguf_families import REFINEMENTS
from vllm_lite.config.checkpoints.gguf_header import GGUFArray, GGUFFile, shortest
from vllm_lite.config.checkpoints.gguf_pooling import add_pooling
from vllm_lite.config.families.architecture import Architecture
from vllm_lite.config.values import Json
from vllm_lite.errors import CheckpointError

# GGUF's name of a rotary scaling to transformers'; one not listed keeps its name.
_ROPE_TYPES = {"none": "default"}
# Keys of a scaling, after "rope.scaling.", to parameters of transformers'.
_ROPE_FIELDS = {
    "factor": "factor",
    "original_context_length": "original_max_position_embeddings",
    "yarn_attn_factor": "attention_factor",
    "yarn_beta_fast": "beta_fast",
    "yarn_beta_slow": "beta_slow",
}
_WITH_WINDOWS = {
    "LlamaForCausalLM": "MistralForCausalLM",
    "Olmo2ForCausalLM": "Olmo3ForCausalLM",
}
# Fields that say whether any layer has a tensor, named as that of the first.
_SEEN = {
    "attention_bias": "blk.0.attn_q.bias",
    "use_bias": "blk.0.attn_output.bias",
    "attention_out_bias": "blk.0.attn_output.bias",
    "mlp_bias": "blk.0.ffn_up.bias",
    "use_qk_norm": "blk.0.attn_q_norm.weight",
}
_WITH_EXPERTS = dict.fromkeys(("LlamaForCausalLM", "MistralForCausalLM"), "MixtralForCausalLM")
# Keys of a mixture's header to fields here.
_EXPERT_FIELDS = {
    "expert_count": "num_experts",
    "expert_used_count": "num_experts_per_tok",
    "expert_feed_forward_length": "moe_intermediate_size",
    "expert_shared_count": "num_shared_experts",
    "expert_weights_scale": "routed_scaling_factor",
    "expert_group_count": "n_group",
    "expert_group_used_count": "topk_group",
    "leading_dense_block_count": "first_k_dense_replace",
}
_MODEL_TYPES = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen3MoeForCausalLM": "qwen3_moe",
}
# Families whose layers may have widths of their own.
_OF_WIDTHS = {"Gemma3nForCausalLM"}
# Texts of control tokens that end a turn, or a message to a tool.
_ENDS = (
    *("<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<turn|>", "<|end_of_turn|>"),
    *("<|endoftext|>", "<|end_of_text|>", "<EOT>", "[EOT]", "<|eot|>", "<end_of_utterance>"),
    *("<\uff5cend\u2581of\u2581sentence\uff5c>", "<|return|>", "<|eom_id|>", "<|eom|>", "<|call|>"),
)


def hf_config_of(gguf: GGUFFile) -> Json:
    """The configuration that transformers would have for this file's model."""
    metadata = gguf.metadata
    name = metadata.get("general.architecture")
    row = GGUF_ARCHITECTURES.get(name) if isinstance(name, str) else None
    if row is None:
        raise CheckpointError(
            f"{gguf.path} holds the architecture {name!r}; "
            f"supported in GGUF files are {', '.join(GGUF_ARCHITECTURES)}"
        )
    get = gguf.of_architecture
    window = get("attention.sliding_window") or None
    # Converters write several under one name.
    if window:
        row = ARCHITECTURES[_WITH_WINDOWS.get(row.name, row.name)]
    if get("expert_count"):
        row = ARCHITECTURES[_WITH_EXPERTS.get(row.name, row.name)]
    _refuse_unsupported(gguf, row)
    num_heads, drafts = _of_all_layers(get("attention.head_count")), get("nextn_predict_layers")
    config: Json = {
        "architectures": [row.name],
        "model_type": _MODEL_TYPES.get(row.name, name),
        "num_hidden_layers": get("block_count") - drafts if drafts else get("block_count"),
        "num_nextn_predict_layers": drafts,
        "hidden_size": get("embedding_length"),
        "intermediate_size": _of_all_layers(get("feed_forward_length")),
        "num_attention_heads": num_heads,
        "num_key_value_heads": _of_all_layers(get("attention.head_count_kv", num_heads)),
        "head_dim": get("attention.key_length"),
        "hidden_act": row.defaults.get("hidden_act", "silu"),
        "rms_norm_eps": shortest(get("attention.layer_norm_rms_epsilon", 1e-6)),
        "max_position_embeddings": get("context_length"),
        "vocab_size": _vocab_size(gguf, get("vocab_size")),
        "sliding_window": window,
        "tie_word_embeddings": "output.weight" not in gguf.tensors,
        "bos_token_id": metadata.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": _end_ids(metadata),
    }
    if get("attention.kv_lora_rank"):
        config |= _latent_sizes(get)
    pattern = get("attention.sliding_window_pattern")
    if isinstance(pattern, GGUFArray) and window:
        kinds = {True: "sliding_attention", False: "full_attention"}
        config["layer_types"] = [kinds[bool(is_local)] for is_local in pattern]
    config["rope_parameters"] = _rope_parameters(gguf, get, config)
    _add_family(config, row, gguf)
    if refine := REFINEMENTS.get(str(name)):
        refine(gguf, config)
    add_pooling(gguf, config)
    for key in ("intermediate_size", "num_attention_heads", "num_key_value_heads"):
        is_read = key == "intermediate_size" and row.name in _OF_WIDTHS
        if isinstance(config[key], list) and not is_read:
            raise CheckpointError(
                f"{gguf.path} has layers of different sizes ({key}), which are not supported"
            )
    return {key: value for key, value in config.items() if value is not None}


def _add_family(config: Json, row: Architecture, gguf: GGUFFile) -> None:
    """Add the fields that the family of `row` reads, from the header and from the tensors."""
    defaults, known = row.defaults, READ_BY_ALL | row.reads
    config |= {key: defaults[key] for key in row.reads if key in defaults and key not in config}
    if gguf.of_architecture("expert_count"):
        given = {own: gguf.of_architecture(key) for key, own in _EXPERT_FIELDS.items()}
        # What files have no field for is as llama.cpp computes it.
        experts = {"norm_topk_prob": True, "decoder_sparse_step": 1, **_expert_width(gguf)}
        experts |= {key: shortest(value) for key, value in given.items() if value is not None}
        config |= {key: value for key, value in experts.items() if key in row.reads}
    config |= row.gguf_fixed
    usual = {key: tensor for key, tensor in _SEEN.items() if key in known}
    for key, tensor in {**usual, **row.gguf_seen}.items():
        is_there = _is_in_a_layer(gguf, tensor.removeprefix("!"))
        config[key] = is_there != tensor.startswith("!")
    for key, own in row.gguf_fields.items():
        value = gguf.of_architecture(key)
        if value is None:
            continue
        *outer, last = own.split(".")
        place = config
        for part in outer:
            place[part] = dict(place.get(part) or {})
            place = place[part]
        place[last] = value.tolist() if isinstance(value, GGUFArray) else shortest(value)


def _is_in_a_layer(gguf: GGUFFile, tensor: str) -> bool:
    own = tensor.removeprefix("blk.0.")
    return tensor in gguf.tensors or any(
        name.startswith("blk.") and name.split(".", 2)[2:] == [own] for name in gguf.tensors
    )


def _expert_width(gguf: GGUFFile) -> Json:
    """The width of experts by their tensors, which older headers do not say."""
    stacks = (t for name, t in gguf.tensors.items() if name.endswith(".ffn_down_exps.weight"))
    stack = next(stacks, None)
    return {} if stack is None else {"moe_intermediate_size": stack.shape[-1]}


def _refuse_unsupported(gguf: GGUFFile, row: Architecture) -> None:
    has_experts = bool(row.reads & {"num_experts", "n_routed_experts"})
    if gguf.of_architecture("expert_count") and not has_experts:
        raise CheckpointError(
            f"{gguf.path} is a mixture of experts, which {row.name} is not here; supported "
            f"mixtures are "
            f"{', '.join(n for n, r in GGUF_ARCHITECTURES.items() if 'num_experts' in r.reads)}"
        )


def _end_ids(metadata: Json) -> list[Any]:
    """Ids of tokens that end a text: those that the header names so, and by their own texts those
    that end a turn, where it names no end of turns."""
    keys = [f"tokenizer.ggml.{name}_token_id" for name in ("eos", "eot", "eom")]
    named = [metadata[key] for key in keys if key in metadata]
    if keys[1] in metadata:
        return named
    tokens, kinds = (metadata.get(f"tokenizer.ggml.{key}", ()) for key in ("tokens", "token_type"))
    special = {token: i for i, token in enumerate(tokens) if i < len(kinds) and kinds[i] == 3}
    # Among messages for tools <|end|> ends a message, and the turn goes on.
    texts = [text for text in _ENDS if text != "<|end|>" or "<|call|>" not in special]
    return list(dict.fromkeys([*named, *(special[text] for text in texts if text in special)]))


def _of_all_layers(value: Any) -> Any:
    """A size that may be given for each layer, 0 where it has none; those that differ as a list."""
    if value is None or isinstance(value, int):
        return value
    sizes = {size for size in value if size}
    return sizes.pop() if len(sizes) == 1 else value.tolist()


def _latent_sizes(get: Any) -> Json:
    """The sizes of latent attention: the usual ones are those of products with latents."""
    rotary_size = get("rope.dimension_count")
    key_size = get("attention.key_length_mla") or get("attention.key_length")
    return {
        "kv_lora_rank": get("attention.kv_lora_rank"),
        "q_lora_rank": get("attention.q_lora_rank"),
        "qk_rope_head_dim": rotary_size,
        "qk_nope_head_dim": key_size - rotary_size,
        "v_head_dim": get("attention.value_length_mla") or get("attention.value_length"),
        "head_dim": rotary_size,
    }


def _vocab_size(gguf: GGUFFile, stated: Any) -> Any:
    """Rows of the embedding: padding may make them more than the tokens."""
    embedding = gguf.tensors.get("token_embd.weight")
    return embedding.shape[0] if embedding is not None else stated


def _rope_parameters(gguf: GGUFFile, get: Any, config: Json) -> Json:
    num_heads, width = config["num_attention_heads"], config["hidden_size"]
    head_size = config["head_dim"]
    if head_size is None and isinstance(num_heads, int) and num_heads and width:
        head_size = width // num_heads
    kind = get("rope.scaling.type", "none")
    rope: Json = {
        "rope_type": _ROPE_TYPES.get(kind, kind),
        "rope_theta": shortest(get("rope.freq_base", 10000.0)),
    }
    rotated = get("rope.dimension_count")
    if rotated and head_size and rotated != head_size:
        rope["partial_rotary_factor"] = rotated / head_size
    factors = {name: f"rope_factors_{name}.weight" for name in ("short", "long")}
    if all(name in gguf.tensors for name in factors.values()):
        rope["rope_type"] = "longrope"
        for name, tensor in factors.items():
            values = gguf.tensor_data(tensor).cast("f")
            rope[f"{name}_factor"] = [shortest(value) for value in values]
        if scale := get("rope.scaling.attn_factor"):
            rope["attention_factor"] = shortest(scale)
    if rope["rope_type"] != "default":
        given = {own: get(f"rope.scaling.{key}") for key, own in _ROPE_FIELDS.items()}
        rope |= {key: shortest(value) for key, value in given.items() if value}
        if scale := get("rope.scaling.yarn_log_multiplier"):
            rope |= {"mscale": 1.0, "mscale_all_dim": shortest(scale)}
        if strength := get("attention.temperature_scale"):
            rope["llama_4_scaling_beta"] = shortest(strength)
    if get("attention.sliding_window") and (local := get("rope.freq_base_swa")):
        local_rope = {"rope_type": "default", "rope_theta": shortest(local)}
        return {"full_attention": rope, "sliding_attention": local_rope}
    return rope
