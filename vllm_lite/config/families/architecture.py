"""The facts of a model architecture that a configuration needs before any model is built."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files
from typing import Any, Literal

from vllm_lite.config.pooling import AnySeqPooling, TokPooling
from vllm_lite.config.values import Json, JsonView

# Which layers have a config's sliding_window: those that layer_types names, else ...
# "chunked": chunks of attention_chunk_size in their place; "around": half of local_attention on
# each side, but in one layer of global_attn_every_n_layers.
WindowRule = Literal[
    "none",
    "every",
    "switched",
    "pattern",
    "pattern from full",
    "chunked",
    "around",
    "attention_types",
]

# Sizes of latent attention.
LATENTS = "kv_lora_rank q_lora_rank qk_nope_head_dim qk_rope_head_dim v_head_dim qk_head_dim"
# The field of models of several media that holds the text model's, and fields of the others.
_TEXT = "text_config"
_OF_MEDIA = frozenset(
    f"{kind}_{what}"
    for kind in ("image", "video", "audio", "boi", "eoi", "boa", "eoa")
    for what in ("token_id", "token_index")
) | {
    *("vision_config", "audio_config", "mm_tokens_per_image"),
    *("vision_start_token_id", "vision_end_token_id"),
    *("vision_soft_tokens_per_image", "audio_soft_tokens_per_image"),
}

# Granite's factors, in the headers of GGUF files.
GRANITE_FACTORS = {
    "attention.scale": "attention_multiplier",
    "embedding_scale": "embedding_multiplier",
    "residual_scale": "residual_multiplier",
    "logit_scale": "logits_scaling",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """One architecture, by its Hugging Face class name."""

    name: str
    # Of vllm_lite.models, where the class is.
    module: str
    # The class there, where one serves several architectures; else it has the architecture's name.
    model_class: str = ""
    # The architecture in transformers that has the same configuration, if not this one.
    like: str = ""
    # general.architecture of GGUF files.
    gguf: tuple[str, ...] = ()
    # Further keys of their headers, after the architecture's name, to fields here; a field within
    # another has a point between their names.
    gguf_fields: Mapping[str, str] = field(default_factory=dict)
    # Fields that say whether the files have a tensor, or, after "!", that they have not.
    gguf_seen: Mapping[str, str] = field(default_factory=dict)
    # Fields that the files leave out, as llama.cpp takes them.
    gguf_fixed: JsonView = field(default_factory=dict)
    # Its own names of fields to the usual ones.
    aliases: Mapping[str, str] = field(default_factory=dict)
    # Defaults beside those of transformers' configuration class (defaults.json).
    own_defaults: JsonView = field(default_factory=dict)
    # Fields of its own that the model's class reads, beside READ_BY_ALL.
    reads: frozenset[str] = frozenset()
    # Fields of its own that change nothing which is computed here.
    harmless: frozenset[str] = frozenset()
    # Fields of its own that may have one value alone, of which the model's class needs no telling.
    fixed: JsonView = field(default_factory=dict)
    # Fields that hold others, which are read as if they stood beside them.
    nested: frozenset[str] = frozenset()
    windows: WindowRule = "none"
    # What its layers know of earlier tokens by; states alone need no positions.
    mixer: Literal["attention", "state", "both"] = "attention"
    # What it answers; the first is what --runner auto runs it for. See config.pooling.TASKS.
    tasks: tuple[str, ...] = ("generate",)
    # Of tasks for prompts and for tokens, unless the checkpoint or the user says otherwise.
    seq_pooling: AnySeqPooling = "LAST"
    # Further fields of PoolingFacts.
    pooling: JsonView = field(default_factory=dict)
    tok_pooling: TokPooling = "ALL"
    # Whether tokens see earlier ones alone; if not, prompts are computed whole, without a cache.
    is_causal: bool = True
    # Its table of positions begins with those of padding, pad_token_id + 1 of them.
    pads_positions: bool = False
    # Of its answers, unless --reasoning-parser names one; as in vLLM.
    reasoning_parser: str = ""

    @property
    def is_text_part(self) -> bool:
        """Whether checkpoints hold more than the text model that is run."""
        return _TEXT in self.nested

    @property
    def defaults(self) -> Json:
        """Values of fields that a config.json leaves out."""
        return {**_class_defaults().get(self.like or self.name, {}), **self.own_defaults}


# For architectures without a family: transformers' own module.
FALLBACK = Architecture(name="", module="transformers_model", model_class="TransformersForCausalLM")
ENCODER_FALLBACK = Architecture(
    name="",
    module="encoders.transformers_encoder",
    model_class="TransformersEncoder",
    tasks=("embed", "token_embed"),
    seq_pooling="CLS",
    is_causal=False,
)
# Endings of the names of transformers' decoders.
GENERATES = ("ForCausalLM", "LMHeadModel")


def fallback(name: str) -> Architecture:
    """The row by which transformers' module of that name runs."""
    return replace(FALLBACK if name.endswith(GENERATES) else ENCODER_FALLBACK, name=name)


def row(
    name: str, module: str, *, reads: str = "", harmless: str = "", nested: str = "", **other: Any
) -> Architecture:
    """An Architecture; `reads`, `harmless` and `nested` are names between spaces."""
    return Architecture(
        name=name,
        module=module,
        reads=frozenset(reads.split()),
        harmless=frozenset(harmless.split()),
        nested=frozenset(nested.split()),
        **other,
    )


def spelled(name: str, of: Architecture, **other: Any) -> Architecture:
    """The row of `of` under another name of the model's class."""
    like, model_class = of.like or of.name, of.model_class or of.name
    return replace(of, name=name, like=like, model_class=model_class, gguf=(), **other)


def text_part(name: str, of: Architecture) -> Architecture:
    """The row of a model that reads pictures or sounds too, and whose text part is `of`."""
    return spelled(name, of, nested=of.nested | {_TEXT}, harmless=of.harmless | _OF_MEDIA)


@cache
def _class_defaults() -> dict[str, Json]:
    text = files("vllm_lite.config.families").joinpath("defaults.json").read_text()
    defaults: dict[str, Json] = json.loads(text)
    return defaults
