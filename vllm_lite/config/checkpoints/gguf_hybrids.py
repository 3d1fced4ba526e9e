"""Configurations of mixtures and state-space models from GGUF headers and tensors.

Headers name sizes of states alike for all architectures; which layers attend, or have experts,
their tensors tell.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from vllm_lite.config.checkpoints.gguf_header import GGUFFile
from vllm_lite.config.values import Json
from vllm_lite.errors import CheckpointError

_SIGMOID = 2  # of expert_gating_func
_YARN_SCALE = 0.1  # by which files of DeepSeek's have multiplied mscale_all_dim
# A tensor of a layer to the layer's kind; the first that there is decides.
_MAMBA_KINDS = {"ssm_out": "linear_attention", "attn_q": "full_attention"}
_NEMOTRON_KINDS = {**_MAMBA_KINDS, "ffn_up_exps": "moe", "ffn_up": "mlp"}
_KIMI_KINDS = {"ssm_f_a": "linear_attention", "attn_kv_a_mqa": "full_attention"}
_LFM_KINDS = {"shortconv.conv": "conv", "attn_q": "full_attention"}


def _size(gguf: GGUFFile, key: str) -> int:
    value = gguf.of_architecture(key)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise CheckpointError(f"{gguf.path}: {key} is {value!r} in its header, not a size")
    return value


def _layers_with(gguf: GGUFFile, config: Json, tensor: str) -> list[int]:
    layers = range(config["num_hidden_layers"])
    return [i for i in layers if f"blk.{i}.{tensor}.weight" in gguf.tensors]


def _kinds(gguf: GGUFFile, config: Json, names: Mapping[str, str]) -> list[str]:
    """Of each layer the kind; raises CheckpointError for one without any of the tensors."""
    kinds = [""] * config["num_hidden_layers"]
    for tensor, kind in reversed(list(names.items())):
        for i in _layers_with(gguf, config, tensor):
            kinds[i] = kind
    for i, kind in enumerate(kinds):
        if not kind:
            raise CheckpointError(f"{gguf.path}: layer {i} has none of {', '.join(names)}")
    return kinds


def _inner_share(gguf: GGUFFile, config: Json) -> float:
    inner, hidden = _size(gguf, "ssm.inner_size"), _size(gguf, "embedding_length")
    return inner / hidden if inner % hidden else inner // hidden


def _deepseek2(gguf: GGUFFile, config: Json) -> None:
    has_choice_bias = any(".exp_probs_b" in name for name in gguf.tensors)
    if has_choice_bias or gguf.of_architecture("expert_gating_func") == _SIGMOID:
        config["architectures"] = ["DeepseekV3ForCausalLM"]
        config |= {"scoring_func": "sigmoid", "topk_method": "noaux_tc"}
    else:
        is_grouped = (config.get("n_group") or 1) > 1
        config["topk_method"] = "group_limited_greedy" if is_grouped else "greedy"
    rope = config["rope_parameters"]
    if "mscale_all_dim" in rope:
        scale = round(rope["mscale_all_dim"] / _YARN_SCALE, 6)
        rope |= {"mscale": scale, "mscale_all_dim": scale}


def _gpt_oss(gguf: GGUFFile, config: Json) -> None:
    if config["rope_parameters"]["rope_type"] == "yarn":
        config["rope_parameters"]["truncate"] = False


def _mamba(gguf: GGUFFile, config: Json) -> None:
    config["expand"] = _inner_share(gguf, config)
    # Nothing attends, and no position is too far.
    for key in ("num_attention_heads", "num_key_value_heads", "max_position_embeddings"):
        config[key] = None
    if gguf.of_architecture("ssm.dt_b_c_rms"):
        config["architectures"] = ["FalconMambaForCausalLM"]
        config["mixer_rms_eps"] = 1e-6


def _mamba2(gguf: GGUFFile, config: Json) -> None:
    _mamba(gguf, config)
    heads = _size(gguf, "ssm.time_step_rank")
    config |= {"num_attention_heads": heads, "head_dim": _size(gguf, "ssm.inner_size") // heads}


def _mamba2_mixers(gguf: GGUFFile, config: Json) -> None:
    inner, heads = _size(gguf, "ssm.inner_size"), _size(gguf, "ssm.time_step_rank")
    config["mamba_d_head"] = inner // heads
    config["mamba_expand"] = _inner_share(gguf, config)


def _granite(gguf: GGUFFile, config: Json) -> None:
    _mamba2_mixers(gguf, config)
    config["layer_types"] = _kinds(gguf, config, _MAMBA_KINDS)
    is_rotated = gguf.of_architecture("rope.scaling.finetuned")
    config["position_embedding_type"] = "rope" if is_rotated else "nope"
    config["num_experts"] = gguf.of_architecture("expert_count", 0)
    shared = "ffn_up_shexp" if config["num_experts"] else "ffn_up"
    tensor = gguf.tensors.get(f"blk.0.{shared}.weight")
    config["shared_intermediate_size"] = 0 if tensor is None else tensor.shape[0]


def _nemotron(gguf: GGUFFile, config: Json) -> None:
    _mamba2_mixers(gguf, config)
    config["layer_types"] = _kinds(gguf, config, _NEMOTRON_KINDS)


def _falcon_h1(gguf: GGUFFile, config: Json) -> None:
    _mamba2_mixers(gguf, config)
    del config["mamba_expand"]
    # Factors are multiplied into the weights.
    config |= {"mlp_multipliers": [1.0] * 2, "ssm_multipliers": [1.0] * 5}


def _jamba(gguf: GGUFFile, config: Json) -> None:
    config["mamba_expand"] = _inner_share(gguf, config)
    config["num_experts"] = gguf.of_architecture("expert_count") or 1
    for name, tensor in (("attn", "attn_q"), ("expert", "ffn_up_exps")):
        layers, count = _layers_with(gguf, config, tensor), config["num_hidden_layers"]
        first = layers[0] if layers else count
        period = layers[1] - first if len(layers) > 1 else count + 1
        if layers != list(range(first, count, period)):
            raise CheckpointError(f"{gguf.path}: its layers with {tensor} have no period")
        config |= {f"{name}_layer_offset": first, f"{name}_layer_period": period}


def _lfm(gguf: GGUFFile, config: Json) -> None:
    config["layer_types"] = _kinds(gguf, config, _LFM_KINDS)
    config["block_auto_adjust_ff_dim"] = False


def _qwen_next(gguf: GGUFFile, config: Json) -> None:
    config["layer_types"] = _kinds(gguf, config, _MAMBA_KINDS)
    heads = _size(gguf, "ssm.time_step_rank")
    config["linear_value_head_dim"] = _size(gguf, "ssm.inner_size") // heads
    config["num_experts"] = gguf.of_architecture("expert_count", 0)
    if config["num_experts"]:
        sparse = _layers_with(gguf, config, "ffn_up_exps")
        dense = [i for i in range(config["num_hidden_layers"]) if i not in sparse]
        config["mlp_only_layers"] = dense


def _kimi_linear(gguf: GGUFFile, config: Json) -> None:
    config["layer_types"] = _kinds(gguf, config, _KIMI_KINDS)
    config["linear_num_heads"] = config["num_attention_heads"]
    is_sigmoid = gguf.of_architecture("expert_gating_func") == _SIGMOID
    config["moe_router_activation_func"] = "sigmoid" if is_sigmoid else "softmax"


HYBRIDS: Mapping[str, Callable[[GGUFFile, Json], Any]] = {
    "deepseek2": _deepseek2,
    "gpt-oss": _gpt_oss,
    "mamba": _mamba,
    "mamba2": _mamba2,
    "granitehybrid": _granite,
    "nemotron_h": _nemotron,
    "nemotron_h_moe": _nemotron,
    "falcon-h1": _falcon_h1,
    "jamba": _jamba,
    "lfm2": _lfm,
    "lfm2moe": _lfm,
    "qwen3next": _qwen_next,
    "qwen35": _qwen_next,
    "qwen35moe": _qwen_next,
    "kimi-linear": _kimi_linear,
}
