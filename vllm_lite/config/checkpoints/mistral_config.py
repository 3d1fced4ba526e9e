"""From Mistral's params.json to the config.json that transformers would have for the same model.

Reads the description only; loader/mistral_files.py has the weights. What is not read here keeps its
own name, so that the family's reader refuses it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vllm_lite.config.json_file import read_json
from vllm_lite.config.values import Json, JsonView
from vllm_lite.errors import CheckpointError

PARAMS = "params.json"
# What vLLM takes where a file says nothing of the longest context.
_LONGEST = 128_000
_NAMES = {
    "dim": "hidden_size",
    "norm_eps": "rms_norm_eps",
    "n_kv_heads": "num_key_value_heads",
    "n_layers": "num_hidden_layers",
    "n_heads": "num_attention_heads",
    "hidden_dim": "intermediate_size",
    "activation": "hidden_act",
    "tied_embeddings": "tie_word_embeddings",
}
_MOE = {"num_experts": "num_local_experts", "num_experts_per_tok": "num_experts_per_tok"}
_YARN = {
    "factor": "factor",
    "original_max_position_embeddings": "original_max_position_embeddings",
    "beta": "beta_fast",
    "alpha": "beta_slow",
}
# Of training, of mistral-inference, and of encoders of pictures, which are not run.
_HARMLESS = ("model_type", "max_batch_size", "lora", "vision_encoder", "multimodal")
# Of latent attention.
_LATENTS = ("kv_lora_rank", "q_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")


def params_of(place: Path, config_format: str) -> Path | None:
    """The params.json that describes the model at `place`, a directory or a file of either layout.

    None where a config.json does, as `config_format` says; auto prefers config.json.
    """
    params = place if place.suffix == ".json" else place / PARAMS
    if config_format == "auto":
        has_own = not (place / "config.json").is_file() and params.is_file()
        return params if has_own and params.name == PARAMS else None
    return params if config_format == "mistral" else None


def hf_config_of_params(path: Path) -> Json:
    """The configuration in the file at `path`; raises CheckpointError for what cannot be run."""
    params = read_json(path)
    _refuse_others(path, params)
    left = {name: value for name, value in params.items() if name not in _HARMLESS}
    moe, yarn, scaling = (left.pop(name, None) for name in ("moe", "yarn", "llama_4_scaling"))
    for name, value in (("moe", moe), ("yarn", yarn), ("llama_4_scaling", scaling)):
        if not isinstance(value or {}, dict):
            raise CheckpointError(f"{path}: {name} is {value!r}, no object; fetch it again")
    theta = left.pop("rope_theta", None) or (10_000.0 if left.get("sliding_window") else 1e6)
    config: Json = {
        # Mistral's tokenizers begin with <unk>, <s> and </s>; its files are bfloat16.
        "bos_token_id": 1,
        "eos_token_id": 2,
        "dtype": "bfloat16",
        "sliding_window": None,
        **{_NAMES.get(name, name): value for name, value in left.items() if value is not None},
        "rope_parameters": _rope(path, theta, yarn or {}, scaling or {}),
    }
    if moe:
        config |= _renamed(path, "moe", moe, _MOE)
    named = "Ministral3" if scaling else "Mixtral" if moe else "Mistral"
    config["architectures"] = [f"{named}ForCausalLM"]
    if not any(config.get(name) for name in ("max_position_embeddings", "max_seq_len")):
        config["max_position_embeddings"] = _LONGEST
    if quantization := config.pop("quantization", None):
        config["quantization_config"] = _quantization(path, quantization)
    return _with_layer_types(path, config)


def _refuse_others(path: Path, params: JsonView) -> None:
    moe, media = params.get("moe"), params.get("multimodal")
    kind = params.get("model_type", "transformer")
    if kind != "transformer":
        what = f"a model of the type {kind!r}"
    elif any(params.get(name) for name in _LATENTS):
        what = "latent attention (kv_lora_rank)"
    elif moe and params.get("llama_4_scaling"):
        what = "experts (moe) with scaled queries (llama_4_scaling)"
    elif isinstance(media, dict) and media.get("whisper_model_args"):
        what = "an encoder of sound (whisper_model_args)"
    else:
        return
    raise CheckpointError(
        f"{path} describes {what}, which is not supported in Mistral's layout; use the "
        "checkpoint in Hugging Face's, with --config-format hf"
    )


def _renamed(path: Path, field: str, given: JsonView, names: dict[str, str]) -> Json:
    """The settings in `given`; raises CheckpointError for one that is not in `names`."""
    for name, value in given.items():
        if name not in names and value not in (None, False, 0):
            raise CheckpointError(
                f"{path}: {field} sets {name} to {value!r}, which is not read here and may change "
                "what the model computes"
            )
    return {names[name]: value for name, value in given.items() if name in names}


def _rope(path: Path, theta: Any, yarn: JsonView, scaling: JsonView) -> Json:
    rope: Json = {"rope_type": "default", "rope_theta": theta}
    if yarn:
        settings = {name: value for name, value in yarn.items() if name != "apply_scale"}
        rope |= {"rope_type": "yarn", **_renamed(path, "yarn", settings, _YARN)}
        if not yarn.get("apply_scale", True):
            rope["attention_factor"] = 1.0
    if scaling:
        length = scaling.get("original_max_position_embeddings")
        if rope.setdefault("original_max_position_embeddings", length) != length:
            raise CheckpointError(
                f"{path}: yarn and llama_4_scaling differ in original_max_position_embeddings"
            )
        rope["llama_4_scaling_beta"] = scaling.get("beta")
    return rope


def _with_layer_types(path: Path, config: Json) -> Json:
    """`config` with one window, where it lists windows of layers that repeat."""
    windows, count = config["sliding_window"], config.get("num_hidden_layers")
    if not isinstance(windows, list):
        return config
    sizes = {window for window in windows if window is not None}
    if not windows or len(sizes) > 1 or not isinstance(count, int) or count % len(windows):
        raise CheckpointError(
            f"{path}: sliding_window is {windows!r}, not one window for some of {count} layers"
        )
    kinds = ["full_attention" if window is None else "sliding_attention" for window in windows]
    repeated = kinds * (count // len(windows))
    return {**config, "sliding_window": next(iter(sizes), None), "layer_types": repeated}


def _quantization(path: Path, given: Any) -> Json:
    """The quantization_config for Mistral's own words, or for compressed-tensors' settings."""
    if isinstance(given, dict) and given.get("qformat_weight") == "fp8_e4m3":
        scales = given.get("qscheme_act")
        if scales in (None, "TENSOR", "NO_SCALES"):
            scheme = "dynamic" if scales == "NO_SCALES" else "static"
            return {"quant_method": "fp8", "activation_scheme": scheme}
    if isinstance(given, dict):
        method = str(given.get("quant_method", "")).lower().replace("_", "-")
        if method == "compressed-tensors":
            return {**given, "quant_method": method}
    raise CheckpointError(
        f"{path}: quantization is {given!r:.200}; supported are qformat_weight fp8_e4m3 with "
        "qscheme_act TENSOR or NO_SCALES, and quant_method compressed-tensors"
    )
