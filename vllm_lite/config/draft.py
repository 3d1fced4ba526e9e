"""The draft model or head of --speculative-config: its facts, and the engine config it runs by.

Knows no weights. Vocabularies are compared token by token where both tokenizers can be read.
"""

from __future__ import annotations

import filecmp
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vllm_lite.config.checkpoints.architectures import ARCHITECTURES, DRAFTS
from vllm_lite.config.checkpoints.checkpoint import check_sizes, read_facts
from vllm_lite.config.checkpoints.family_config import HARMLESS, READ_BY_ALL
from vllm_lite.config.checkpoints.field_kinds import MOST_LISTED
from vllm_lite.config.checkpoints.gguf_header import read_gguf
from vllm_lite.config.facts import ModelFacts
from vllm_lite.config.json_file import read_json
from vllm_lite.config.sources import resolve_model_source
from vllm_lite.config.speculative import CUSTOM, MTP_NAMES, OF_MODELS, SpeculativeConfig
from vllm_lite.config.values import Json, JsonView
from vllm_lite.errors import CheckpointError, UsageError

if TYPE_CHECKING:
    from vllm_lite.config.vllm import VllmConfig

_FLAG = "--speculative-config.model"
# Options of their own to keys.
_ALONE = {
    "spec_method": "method",
    "spec_model": "model",
    "spec_tokens": "num_speculative_tokens",
}
# Where the speculators format has the configuration of the head's layers.
_LAYERS = "transformer_layer_config"
# The field of a multi-token predictor that names its model's architecture.
TARGET = "target_architecture"
# Those whose layers models.mtp knows by their names.
MTP_TARGETS = (
    *("DeepseekV3ForCausalLM", "Glm4MoeForCausalLM", "Glm4MoeLiteForCausalLM"),
    *("ExaoneMoeForCausalLM", "ExaoneMoEForCausalLM", "Ernie4_5_MoeForCausalLM"),
)


def find_draft(values: Json, facts: ModelFacts, source: JsonView) -> ModelFacts | None:
    """The facts of the draft model that the options `values` ask for; its files are here then.

    `facts` are the target's, and `source` tells where its files are from. The method and the number
    of drafts are entered in the options, where its files say them.
    """
    whole: Json = dict(values.get("speculative_config") or {})
    for name, key in _ALONE.items():
        if values.get(name) is not None:
            whole[key] = values[name]
    model, method = whole.get("model"), whole.get("method")
    row = ARCHITECTURES.get(facts.architecture)
    if (model or method) and row is not None and row.mixer != "attention":
        raise UsageError(
            f"--speculative-config: {facts.architecture} has states, from which a wrong draft "
            "cannot be taken back; leave it out"
        )
    if method in MTP_NAMES:
        whole["method"] = method = "mtp"
        whole["model"] = model = model or values["model"]
    if method is None and model is not None and (named := _named_method(model)):
        whole["method"] = method = named
        values["speculative_config"] = whole
    if model is None or method not in (None, *OF_MODELS):
        return None
    own = whole.get("draft_load_config") or {}
    load_format = str(own.get("load_format", values.get("load_format", "auto")))
    if model != values["model"]:
        source = {**source, "revision": whole.get("revision")}
    path = resolve_model_source(model, weights=False, **source)
    described = Path(path) / "config.json"  # else it is a file, or in Mistral's layout
    raw = _flat(path, read_json(described)) if described.is_file() else {}
    whole["method"] = method = method or _method_of(raw)
    draft = _FACTS[method](path, raw, facts) if method in _FACTS else read_facts(path)
    if load_format != "dummy":
        resolve_model_source(model, **source, load_format=load_format)
    if method == "draft_model":
        if load_format != "dummy":
            check_sizes(draft)
        _check_mixer(draft)
        _check_vocabulary(facts, Path(str(values.get("tokenizer") or facts.path)), draft)
    elif facts.implementation == "transformers" or facts.pooling is not None:
        raise UsageError(
            f"--speculative-config.method {method} needs this package's own module of the model; "
            "use draft_model, ngram or suffix"
        )
    if told := served_speculator(path):
        whole.setdefault("num_speculative_tokens", told["num_speculative_tokens"])
    most = draft.hf_config.get("num_nextn_predict_layers" if method == "mtp" else "num_heads")
    if method in ("mtp", "medusa") and most:
        whole.setdefault("num_speculative_tokens", most)
    values["speculative_config"] = whole
    for name in _ALONE:
        values.pop(name, None)
    return replace(draft, trusts_code=facts.trusts_code)


def served_speculator(path: str) -> Json | None:
    """The `model` that a checkpoint in the speculators format drafts for, method and number.

    None for any other checkpoint. Raises CheckpointError.
    """
    config = Path(path) / "config.json"
    raw = read_json(config) if config.is_file() else {}
    if "speculators_config" not in raw:
        return None
    try:
        told = raw["speculators_config"]
        return {
            "model": str(told["verifier"]["name_or_path"]),
            "method": str(raw["speculators_model_type"]),
            "num_speculative_tokens": told["proposal_methods"][0]["speculative_tokens"],
        }
    except (IndexError, KeyError, TypeError):
        raise CheckpointError(
            f"{config} has no verifier, no method or no number of tokens in speculators_config; "
            "name it by --speculative-config.model, with a --model"
        ) from None


def _flat(path: str, raw: JsonView) -> JsonView:
    """The configuration of a draft model as vLLM's own formats have it."""
    told = served_speculator(path)
    layers = raw.get(_LAYERS)
    if told is None or not isinstance(layers, dict):
        return raw
    if told["method"] != "eagle3":
        raise CheckpointError(
            f"{path} is a speculator of the kind {told['method']}; those of eagle3 are supported"
        )
    named = ("architectures", "model_type")
    own = {name: value for name, value in raw.items() if name not in named}
    return {"norm_before_residual": True, "draft_vocab_size": None, **layers, **own}


def _named_method(model: str) -> str | None:
    """The method that a name which is no model stands for, as in vLLM."""
    if model in ("ngram", "[ngram]"):
        return "ngram"
    parts = model.split(".")
    is_class = len(parts) > 1 and all(part.isidentifier() for part in parts)
    return CUSTOM if is_class and not Path(model).exists() else None


def _method_of(raw: JsonView) -> str:
    """The method of a draft model that has the configuration `raw`."""
    names = " ".join(map(str, raw.get("architectures") or ()))
    if raw.get("model_type") == "medusa" or "Medusa" in names:
        return "medusa"
    if "draft_vocab_size" in raw or "Eagle3" in names:
        return "eagle3"
    return "eagle" if "Eagle" in names or raw.get("model_type") == "eagle" else "draft_model"


def _eagle(name: str, path: str, raw: JsonView, facts: ModelFacts) -> ModelFacts:
    """A head of Llama's layers; fields that it does not read are passed over."""
    row = DRAFTS[name]
    known = READ_BY_ALL | HARMLESS | row.reads
    is_flat = _LAYERS in raw
    fields: Json = {field: None for field in raw if field not in known}
    fields |= {field: raw[field] for field in raw if is_flat and field in known}
    draft = read_facts(path, hf_overrides=fields, row=row)
    read_from = draft.hf_config.get("target_hidden_size") or draft.hidden_size
    _check_sizes(path, facts, hidden_size=read_from, vocab_size=draft.vocab_size)
    return draft


def _medusa(path: str, raw: JsonView, facts: ModelFacts) -> ModelFacts:
    hf: Json = {"num_hidden_layers": 1, **raw}
    for field in raw:
        for word, usual in (("heads", "num_heads"), ("layers", "num_hidden_layers")):
            if "num" in field and word in field:
                hf[usual] = raw[field]
    for field in ("num_heads", "num_hidden_layers"):
        if type(hf.get(field)) is not int or not 0 < hf[field] <= MOST_LISTED:
            raise CheckpointError(f"{path}: {field} is {hf.get(field)!r} in its configuration")
    given = {name: hf.get(name) for name in ("hidden_size", "vocab_size")}
    _check_sizes(path, facts, **given)
    return replace(facts, path=path, format="hf", architecture="MedusaModel", hf_config=hf)


def _mtp(path: str, raw: JsonView, facts: ModelFacts) -> ModelFacts:
    if facts.architecture not in MTP_TARGETS or facts.format == "gguf":
        raise UsageError(
            f"--speculative-config.method mtp: no such layers of {facts.architecture} in a "
            f"{'.gguf file' if facts.format == 'gguf' else 'checkpoint'} are known here, but those "
            f"of {', '.join(MTP_TARGETS)}; use draft_model, ngram or suffix"
        )
    if not facts.hf_config.get("num_nextn_predict_layers"):
        raise UsageError(
            f"--speculative-config.method mtp: {path} has no layers that predict further tokens "
            "(num_nextn_predict_layers); use draft_model, ngram or suffix"
        )
    hf = {**facts.hf_config, TARGET: facts.architecture}
    return replace(facts, path=path, architecture="MultiTokenPredictor", hf_config=hf)


_FACTS: dict[str, Callable[[str, JsonView, ModelFacts], ModelFacts]] = {
    "eagle": partial(_eagle, "EagleForCausalLM"),
    "eagle3": partial(_eagle, "Eagle3LlamaForCausalLM"),
    "medusa": _medusa,
    "mtp": _mtp,
}


def _check_sizes(path: str, facts: ModelFacts, **given: Any) -> None:
    """Raise UsageError unless a head reads and names what the target has."""
    for name, value in given.items():
        if value != getattr(facts, name):
            raise UsageError(
                f"{_FLAG} {path} drafts for a model whose {name} is {value}, and that of "
                f"{facts.path} is {getattr(facts, name)}; use the head of this model"
            )


def _check_mixer(draft: ModelFacts) -> None:
    row = ARCHITECTURES.get(draft.architecture)
    if row is not None and (row.mixer != "attention" or not row.is_causal):
        raise UsageError(
            f"{_FLAG} {draft.path}: drafts of {draft.architecture} cannot be taken back, as its "
            "layers keep states or see later tokens; use a model with attention alone"
        )


def draft_config(config: VllmConfig) -> VllmConfig:
    """The config by which the draft model of `config` is loaded and run."""
    draft, chosen = config.draft, config.speculative
    assert draft is not None
    longest = min(chosen.max_model_len or config.model.max_model_len, config.model.max_model_len)
    quantization = chosen.quantization or draft.quantization
    if draft.format == "gguf":
        quantization = quantization or "gguf"
    model = replace(
        config.model,
        model=chosen.model or config.model.model,
        quantization=quantization,
        quantization_config=None,
        max_model_len=min(longest, draft.max_position),
    )
    load = config.load
    if load.load_format not in ("auto", "dummy") or chosen.draft_load_config is not None:
        load = replace(load, load_format="auto", model_loader_extra_config={})
        load = replace(load, **(chosen.draft_load_config or {}))
    return replace(
        config,
        facts=draft,
        model=model,
        load=load,
        scheduler=replace(config.scheduler, long_prefill_token_threshold=0),
        speculative=SpeculativeConfig(),
        draft=None,
    )


def _check_vocabulary(facts: ModelFacts, tokenizer: Path, draft: ModelFacts) -> None:
    """Raise UsageError unless ids mean the same to both models; rows beyond them may differ."""
    own_file, other = (place / "tokenizer.json" for place in (tokenizer, Path(draft.path)))
    if own_file.is_file() and other.is_file() and filecmp.cmp(own_file, other, shallow=False):
        return
    own, others = _tokens(tokenizer), _tokens(Path(draft.path))
    if own is None or others is None:
        if facts.vocab_size == draft.vocab_size:
            return
        how = f"it has {draft.vocab_size:,} tokens, and the model {facts.vocab_size:,}"
    elif own == others:
        return
    else:
        first = min(i for i in own.keys() | others.keys() if own.get(i) != others.get(i))
        how = f"its token {first} is {others.get(first)!r}, and the model's {own.get(first)!r}"
    raise UsageError(
        f"{_FLAG} {draft.path}: {how}; use a draft model with the same vocabulary as {facts.path}"
    )


def _tokens(place: Path) -> dict[int, str] | None:
    """Texts of tokens by id, as the tokenizer's file has them; None where it is of another kind."""
    if place.suffix == ".gguf":
        listed: Any = read_gguf(str(place)).metadata.get("tokenizer.ggml.tokens")
        return None if listed is None else dict(enumerate(listed))
    file = place / "tokenizer.json"
    try:
        read: Any = read_json(file) if file.is_file() else {}
        added = {token["id"]: token["content"] for token in read.get("added_tokens") or ()}
        return {number: text for text, number in read["model"]["vocab"].items()} | added
    except (AttributeError, KeyError, TypeError):
        return None
