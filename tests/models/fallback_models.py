"""Random tiny models of transformers' decoders that have no family here."""

from __future__ import annotations

import inspect
from typing import Any

import torch
import transformers
from transformers import PreTrainedModel

from vllm_lite.config.checkpoints.architectures import find_row

# By the fields that a configuration has.
_SIZES: dict[str, Any] = {
    **dict.fromkeys(("hidden_size", "d_model", "embedding_size"), 48),
    **dict.fromkeys(("head_dim", "qk_nope_head_dim", "v_head_dim", "global_head_dim"), 12),
    **dict.fromkeys(("ffn_dim", "decoder_ffn_dim", "encoder_ffn_dim"), 56),
    **dict.fromkeys(("n_routed_experts", "num_experts", "num_local_experts"), 8),
    "moe_num_experts": 8,
    **dict.fromkeys(("shared_expert_intermediate_size", "shared_intermediate_size"), 24),
    "moe_intermediate_size": 24,
    **dict.fromkeys(("num_experts_per_tok", "moe_topk", "n_group", "decoder_layers"), 2),
    **dict.fromkeys(("decoder_attention_heads", "encoder_attention_heads"), 4),
    **dict.fromkeys(("topk_group", "num_dense_layers", "encoder_layers", "bos_token_id"), 1),
    "vocab_size": 131,
    "unpadded_vocab_size": 131,
    "intermediate_size": 80,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "q_lora_rank": 20,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "sliding_window": 9,
    "local_attention": 18,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_PLAIN = {"rope_type": "default", "rope_theta": 10000.0}
_TURNS = {"layer_types": ["full_attention", "sliding_attention"] * 2}
_OTHER: dict[str, dict[str, Any]] = {
    "AXK1ForCausalLM": {"num_key_value_heads": 4},
    "YoutuForCausalLM": {"num_key_value_heads": 4},
    "Mistral4ForCausalLM": {"num_key_value_heads": 4},
    **dict.fromkeys(("MellumForCausalLM", "LagunaForCausalLM"), _TURNS),
    "CohereCompassForCausalLM": {
        **_TURNS,
        "rope_parameters": dict.fromkeys(_TURNS["layer_types"], _PLAIN),
    },
    "LongcatFlashForCausalLM": {
        "zero_expert_num": 2,
        "expert_ffn_hidden_size": 24,
        "ffn_hidden_size": 40,
        "num_layers": 2,
        "num_key_value_heads": 4,
        "head_dim": 8,
    },
}
# More than any of RUNS has: configurations of media, say, whose sizes are not known here.
_MOST_WEIGHTS = 20_000_000


def decoders() -> list[str]:
    """The classes of transformers that generate text and have no family here."""
    names = (name for name in dir(transformers) if name.endswith(("ForCausalLM", "LMHeadModel")))
    return [name for name in names if not name.startswith("Auto") and find_row(name) is None]


def make_decoder(name: str) -> PreTrainedModel | None:
    """A random model in float32; None where no small one can be made by its fields alone."""
    kind = getattr(transformers, name)
    config_class = kind.config_class
    known = {*inspect.signature(config_class.__init__).parameters, *config_class.attribute_map}
    known |= set(getattr(config_class, "__dataclass_fields__", ()))
    given = {key: value for key, value in _SIZES.items() if key in known}
    given |= {"is_decoder": True, **_OTHER.get(name, {})}
    torch.manual_seed(sum(map(ord, name)))
    try:
        config = config_class(**given)
        with torch.device("meta"):
            weights = sum(x.numel() for x in kind._from_config(config).parameters())
        if weights > _MOST_WEIGHTS:
            return None
        model: PreTrainedModel = kind._from_config(config, attn_implementation="eager").eval()
    except Exception:
        return None
    stored = model.state_dict().keys()
    with torch.no_grad():
        for path, parameter in model.named_parameters():
            parameter.normal_(1.0 if "norm" in path else 0.0, 0.25)
        for path, buffer in model.named_buffers():
            if path in stored and buffer.is_floating_point():
                buffer.add_(0.1 * torch.randn_like(buffer))
    return model
