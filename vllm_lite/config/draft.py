"""The draft model of --speculative-config: its files, its facts, and the engine config it runs by.

Knows no weights. Vocabularies are compared token by token where both tokenizers can be read.
"""

from __future__ import annotations

import filecmp
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vllm_lite.config.architectures import ARCHITECTURES
from vllm_lite.config.checkpoint import check_sizes, read_facts
from vllm_lite.config.facts import ModelFacts
from vllm_lite.config.gguf_header import read_gguf
from vllm_lite.config.json_file import read_json
from vllm_lite.config.sources import resolve_model_source
from vllm_lite.config.speculative import SpeculativeConfig
from vllm_lite.config.values import Json, JsonView
from vllm_lite.errors import UsageError

if TYPE_CHECKING:
    from vllm_lite.config.vllm import VllmConfig

_FLAG = "--speculative-config.model"


def find_draft(values: Json, facts: ModelFacts, source: JsonView) -> ModelFacts | None:
    """The facts of the draft model that the options `values` ask for; its files are here then.

    `facts` are the target's, and `source` tells where its files are from.
    """
    whole: Json = dict(values.get("speculative_config") or {})
    model = values.get("spec_model") or whole.get("model")
    method = values.get("spec_method") or whole.get("method")
    if model is None:
        return None
    if method is None:
        whole["method"] = method = "draft_model"
        values["speculative_config"] = whole
    if method != "draft_model":
        return None
    own = whole.get("draft_load_config") or {}
    load_format = str(own.get("load_format", values.get("load_format", "auto")))
    source = {**source, "revision": whole.get("revision")}
    path = resolve_model_source(model, weights=False, **source)
    draft = replace(read_facts(path), trusts_code=facts.trusts_code)
    if load_format != "dummy":
        resolve_model_source(model, **source, load_format=load_format)
        check_sizes(draft)
    row = ARCHITECTURES.get(draft.architecture)
    if row is not None and (row.mixer != "attention" or not row.is_causal):
        raise UsageError(
            f"{_FLAG} {model}: drafts of {draft.architecture} cannot be taken back, as its layers "
            "keep states or see later tokens; use a model with attention alone"
        )
    tokenizer = Path(str(values.get("tokenizer") or facts.path))
    _check_vocabulary(facts, tokenizer, draft)
    return draft


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
