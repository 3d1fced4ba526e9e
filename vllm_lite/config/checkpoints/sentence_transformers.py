"""The files of sentence-transformers beside a checkpoint: how it makes vectors, and for what.

Gives fields of PoolingFacts; knows neither the model nor the user's options.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec

from vllm_lite.config.json_file import read_json
from vllm_lite.config.pooling import DenseFacts
from vllm_lite.config.values import Json
from vllm_lite.errors import CheckpointError, UsageError
from vllm_lite.log import init_logger

logger = init_logger(__name__)

# Orders of modules that can be computed, by the last words of their types.
_ORDER = re.compile(
    r"(Transformer )(Pooling )?((?:Dense )*)(Normalize )?|(MLM)?Transformer SpladePooling "
)
_MODES = {
    "cls": "CLS",
    "lasttoken": "LAST",
    "max": "MAX_STATE",
    "mean": "MEAN",
    "mean_sqrt_len": "MEAN_SQRT",
    "weightedmean": "WEIGHTED_MEAN",
}
_ACTIVATIONS = ("gelu", "identity", "relu", "sigmoid", "tanh")
_SIMILARITIES = ("cosine", "dot", "euclidean", "manhattan")


class _Module(msgspec.Struct):
    type: str
    path: str = ""

    @property
    def kind(self) -> str:
        return self.type.rpartition(".")[2]


def read_modules(path: Path, *, has_pooling: bool) -> Json | None:
    """The fields that the modules of the checkpoint at `path` set; None where there are none.

    With `has_pooling` the pooling of prompts is chosen elsewhere. Raises UsageError for modules
    that cannot be computed.
    """
    listed = _listed(path / "modules.json")
    if listed is None:
        return None
    modules = [module for module in listed if module.kind != "Dropout"]
    order = _ORDER.fullmatch("".join(f"{module.kind} " for module in modules))
    if order is None or modules[0].path:
        named = ", ".join(f"{module.kind} {module.path}".strip() for module in modules)
        raise UsageError(
            f"{path / 'modules.json'} lists {named}; vectors are made by Transformer in the same "
            "folder, Pooling, Dense and Normalize, in this order, or by MLMTransformer and "
            "SpladePooling"
        )
    by_kind = {module.kind: path / module.path for module in modules}
    found: Json = {"use_activation": "Normalize" in by_kind}
    if "SpladePooling" in by_kind:
        _check_splade(by_kind["SpladePooling"] / "config.json")
        found |= {"tasks": ("embed", "token_embed"), "seq_pooling_type": "MAX"}
    elif "Pooling" not in by_kind:
        found["tasks"] = ("token_embed",)
    elif not has_pooling:
        found |= _pooling(by_kind["Pooling"] / "config.json")
    found["dense"] = tuple(_dense(path, m.path) for m in modules if m.kind == "Dense")
    return found | _prompts(path / "config_sentence_transformers.json")


def read_inputs(path: Path) -> Json:
    """The fields about texts: how many tokens are kept, and whether letters are lowered."""
    found: Json = {}
    for file in sorted(path.glob("sentence_*_config.json")):
        stated = read_json(file)
        length = stated.get("max_seq_length")
        if isinstance(length, int) and length > 0:
            found.setdefault("max_seq_length", length)
        if stated.get("do_lower_case") is True:
            found["lowers_texts"] = True
    return found


def weighs_words(path: Path) -> bool:
    """Whether the checkpoint at `path` gives a weight of each word (SPLADE)."""
    return any(module.kind == "SpladePooling" for module in _listed(path / "modules.json") or ())


def _listed(path: Path) -> list[_Module] | None:
    if not path.is_file():
        return None
    try:
        return msgspec.json.decode(path.read_bytes(), type=list[_Module])
    except (msgspec.DecodeError, OSError) as error:
        raise UsageError(f"{path} cannot be read ({error}); fetch it again") from None


def _pooling(path: Path) -> Json:
    stated = read_json(path)
    named = stated.get("pooling_mode") or []
    modes = [str(mode) for mode in (named if isinstance(named, list) else [named])]
    prefix = "pooling_mode_"
    modes += [k.removeprefix(prefix) for k, on in stated.items() if k.startswith(prefix) and on]
    words = [mode.removesuffix("_tokens").removesuffix("_token") for mode in modes]
    if len(words) != 1 or words[0] not in _MODES:
        raise UsageError(
            f"{path} pools by {', '.join(modes) or 'nothing'}; available is one of "
            f"{', '.join(_MODES)}: choose CLS, LAST or MEAN by --pooler-config.seq_pooling_type"
        )
    kind = _MODES[words[0]]
    counts_prompts = stated.get("include_prompt") is not False or kind in ("CLS", "LAST")
    return {"seq_pooling_type": kind, "counts_prompts": counts_prompts}


def _check_splade(file: Path) -> None:
    stated = read_json(file) if file.is_file() else {}
    for name, known in (("pooling_strategy", "max"), ("activation_function", "relu")):
        if stated.get(name, known) != known:
            raise UsageError(
                f"{file}: {name} is {stated[name]!r}, and words are weighed by {known} alone; use "
                "a checkpoint that was trained so"
            )


def _dense(path: Path, folder: str) -> DenseFacts:
    file = path / folder / "config.json"
    stated = read_json(file)
    sizes = [stated.get(name) for name in ("in_features", "out_features")]
    activation = str(stated.get("activation_function") or "identity").rpartition(".")[2].lower()
    if not all(type(size) is int and size > 0 for size in sizes) or activation not in _ACTIVATIONS:
        raise CheckpointError(
            f"{file} has no positive in_features and out_features, or its activation_function is "
            f"none of {', '.join(_ACTIVATIONS)}; fetch it again"
        )
    in_size, out_size = (int(size or 0) for size in sizes)
    return DenseFacts(
        folder=folder,
        in_size=in_size,
        out_size=out_size,
        has_bias=bool(stated.get("bias", True)),
        activation=activation,
    )


def _prompts(path: Path) -> Json:
    stated = read_json(path) if path.is_file() else {}
    prompts: Any = stated.get("prompts") or {}
    if not isinstance(prompts, dict) or not all(isinstance(x, str) for x in prompts.values()):
        raise CheckpointError(f"{path}: prompts are no texts by name; fetch it again")
    if default := prompts.get(str(stated.get("default_prompt_name"))):
        logger.info(
            "%s has a prompt for texts that come without one, %r; as in vLLM, clients write it",
            path,
            default,
        )
    kind = stated.get("similarity_fn_name") or "cosine"
    if kind not in _SIMILARITIES:
        raise CheckpointError(
            f"{path}: similarity_fn_name is {kind!r}, and scores are one of "
            f"{', '.join(_SIMILARITIES)}; correct it there"
        )
    return {"prompts": prompts, "similarity_fn_name": kind}
