"""Rotary settings of a configuration, in one form for all spellings.

One dict of rope_type, rope_theta and what the type needs; or such a dict for each kind of layer,
by the names of layer_types. The order in which spellings win is that of transformers.
"""

from __future__ import annotations

from typing import Any

from vllm_lite.config.checkpoints.architectures import SUPPORTED_ROPE_TYPES
from vllm_lite.config.values import Json, JsonView
from vllm_lite.errors import CheckpointError

_INF = float("inf")
_KINDS = ("full_attention", "sliding_attention")
# Scalings that know the length a model was trained for.
_KNOW_TRAINED_LENGTH = {"llama3", "yarn", "longrope"}
# What is a positive number, where it is there; a magnitude may be 0 too.
_POSITIVE = ("original_max_position_embeddings", "low_freq_factor", "high_freq_factor", "alpha")
_MAGNITUDES = (
    *("beta_fast", "beta_slow", "attention_factor", "mscale", "mscale_all_dim"),
    *("short_mscale", "long_mscale", "partial_rotary_factor"),
)
# Fields beside the dicts that belong into them.
_LOOSE = (
    *("rope_theta", "rope_scaling", "rope_local_base_freq"),
    *("partial_rotary_factor", "original_max_position_embeddings"),
)


def take_rope_parameters(path: str, hf: Json, overrides: JsonView) -> None:
    """Leave in `hf` one `rope_parameters`, in place of every older spelling.

    Raises CheckpointError for what is not a number, and for a scaling that no layer knows.
    """
    for key in ("rope_parameters", "rope_scaling"):
        if not isinstance(hf.get(key) or {}, dict):
            raise CheckpointError(f"{path}: {key} is {hf[key]!r} in its configuration, no object")
    given = dict(hf.get("rope_parameters") or {})
    nested = [kind for kind in _KINDS if isinstance(given.get(kind), dict)]
    for kind in _KINDS:
        if kind in given and kind not in nested:
            raise CheckpointError(
                f"{path}: rope_parameters has {given[kind]!r} for {kind}, no object"
            )
    if nested:
        hf["rope_parameters"] = {kind: _flat(path, hf, given[kind], {}) for kind in nested}
    else:
        hf["rope_parameters"] = _flat(path, hf, given, overrides)
        if hf.get("rope_local_base_freq") is not None:
            local = {"rope_type": "default", "rope_theta": hf["rope_local_base_freq"]}
            share = {"partial_rotary_factor": hf.get("partial_rotary_factor")}
            hf["rope_parameters"] = {
                "full_attention": hf["rope_parameters"],
                "sliding_attention": _flat(path, share, local, {}),
            }
    for key in _LOOSE:
        hf.pop(key, None)


def main_rope(hf: JsonView) -> Json:
    """The settings of layers that attend to everything."""
    rope: Json = hf["rope_parameters"]
    main: Json = rope.get("full_attention") or rope.get("sliding_attention", rope)
    return main


def with_one_set(config: Any, length: int) -> Any:
    """A configuration of transformers whose longrope has the factors for `length` tokens alone.

    Its modules choose a set for each sequence, and cached keys would not fit a longer one.
    """
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type") == "longrope":
        trained = rope.get("original_max_position_embeddings") or config.max_position_embeddings
        chosen, other = ("long", "short") if length > trained else ("short", "long")
        for key in ("factor", "mscale"):
            if f"{chosen}_{key}" in rope:
                rope[f"{other}_{key}"] = rope[f"{chosen}_{key}"]
    return config


def _flat(path: str, hf: JsonView, given: JsonView, overrides: JsonView) -> Json:
    rope = dict(given)
    scaling = hf.get("rope_scaling")
    if scaling and (not rope or "rope_scaling" in overrides):
        rope = {**({"rope_theta": rope["rope_theta"]} if "rope_theta" in rope else {}), **scaling}
    if "rope_theta" in overrides or rope.get("rope_theta") is None:
        rope["rope_theta"] = hf.get("rope_theta") or 10000.0
    if hf.get("partial_rotary_factor") is not None:
        rope.setdefault("partial_rotary_factor", hf["partial_rotary_factor"])
    if hf.get("rotary_dim") is not None:
        rope.setdefault("rotary_dim", hf["rotary_dim"])
    # The oldest spellings of rope_type and of longrope.
    old = rope.pop("type", None)
    rope.setdefault("rope_type", old or "default")
    if rope["rope_type"] == "su" or (rope["rope_type"] == "yarn" and "short_factor" in rope):
        rope["rope_type"] = "longrope"
    # A token of text is at the same position on every axis: mrope_section, plain or interleaved,
    # then says nothing.
    if rope["rope_type"] == "mrope":
        rope["rope_type"] = "default"
    if rope["rope_type"] not in SUPPORTED_ROPE_TYPES:
        raise CheckpointError(
            f"{path}: rope_type is {rope['rope_type']!r} in its rotary settings; "
            f"supported are {', '.join(SUPPORTED_ROPE_TYPES)}"
        )
    trained = hf.get("original_max_position_embeddings")
    if trained is not None and rope["rope_type"] in _KNOW_TRAINED_LENGTH:
        rope["original_max_position_embeddings"] = trained
    needed = {"rope_theta"}
    if rope["rope_type"] not in ("default", "longrope", "proportional"):
        needed.add("factor")
    for key in (*needed, *(name for name in _POSITIVE if rope.get(name) is not None)):
        value = rope.get(key)
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < _INF:
            raise CheckpointError(f"{path}: the rotary {key} is {value!r}, not a positive number")
    for key in _MAGNITUDES:
        value = rope.get(key)
        if value is not None and not (isinstance(value, int | float) and 0 <= value < _INF):
            raise CheckpointError(f"{path}: the rotary {key} is {value!r}, not a number from 0")
    if rope["rope_type"] == "longrope":
        _check_factors(path, rope)
    return rope


def _check_factors(path: str, rope: JsonView) -> None:
    for key in ("short_factor", "long_factor"):
        factors = rope.get(key)
        if not isinstance(factors, list) or not all(
            isinstance(factor, int | float) and 0 < factor < _INF for factor in factors
        ):
            raise CheckpointError(
                f"{path}: rotary scaling of type longrope needs {key}, a list of positive numbers"
            )
