"""A model by transformers' own module, for what has no family here (--model-impl transformers).

The module is built without weights. Its linear layers, experts, embedding and head are replaced by
ours, its attention is routed to the paged cache, and the rest runs in torch, so that a step is not
recorded. Only what passes the trial of transformers_attention is run.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers.dynamic_module_utils import get_class_from_dynamic_module

from vllm_lite.config.checkpoints.rope import with_one_set
from vllm_lite.config.facts import ModelFacts
from vllm_lite.core.kv_spec import KVCacheSpec, LayerCacheSpec
from vllm_lite.errors import CheckpointError
from vllm_lite.kernels.dispatch import ops
from vllm_lite.layers.attention import LayerCache
from vllm_lite.layers.state import StateCache
from vllm_lite.loader.weight_rules import AnyRule
from vllm_lite.models.heads import HeadSpec
from vllm_lite.models.options import BuildOptions
from vllm_lite.models.transformers_attention import (
    PAGED,
    TRIAL,
    AttendingLayer,
    Trial,
    bound_attention,
    use_attention,
)
from vllm_lite.models.transformers_layers import make_head, make_parameters, replace_layers
from vllm_lite.models.transformers_names import name_rules

_NO_INTERFACE = "it does not attend by transformers' attention interface"
# Layers of attention as configurations call them.
_KINDS = {"full_attention", "sliding_attention", "chunked_attention"}
# vLLM's names of its fallback for models that pool, to transformers' table of their classes.
_TABLES = {
    "TransformersEmbeddingModel": "AutoModel",
    "TransformersMoEEmbeddingModel": "AutoModel",
    "TransformersForSequenceClassification": "AutoModelForSequenceClassification",
    "TransformersMoEForSequenceClassification": "AutoModelForSequenceClassification",
}


class TransformersForCausalLM(nn.Module):
    """Any causal decoder that attends by transformers' attention interface."""

    def __init__(self, facts: ModelFacts, options: BuildOptions) -> None:
        super().__init__()
        self._facts, self._options = facts, options
        self._layers: list[AttendingLayer] = []
        self._device = torch.get_default_device()
        whole = build(facts, options.dtype)
        name, base, head = whole.base_model_prefix, whole.base_model, whole.get_output_embeddings()
        if base is whole or "position_ids" not in arguments(base.forward):
            raise refusal(facts, "it is no decoder that takes positions")
        self._config = with_one_set(whole.config, options.max_model_len)
        self._base_forward = base.forward
        is_plain, is_linear = type(head) is nn.Linear, isinstance(head, nn.Linear)
        is_tied = is_linear and head.weight is base.get_input_embeddings().weight
        if not is_linear or (is_tied and not is_plain):
            raise refusal(facts, "its head is not one linear layer")
        names = {module: path for path, module in whole.named_modules()}
        replace_layers(base, name, options)
        if is_plain:
            tokens, path = base.get_input_embeddings(), names[head]
            whole.set_submodule(path, make_head(head, is_tied, tokens, options.at(path)))
        setattr(whole, name, _Given())
        # What stands between the last hidden state and logits is the module's own. In a tuple it
        # is no submodule.
        self._whole = (whole,)
        for child_name, child in whole.named_children():
            self.add_module(child_name, base if child_name == name else child)
        make_parameters(self, base, self._device)

    @staticmethod
    def weight_rules(facts: ModelFacts) -> Sequence[AnyRule]:
        """Tensors have the names of the module, but for those that transformers renames."""
        whole = build(facts, torch.float32)
        try:
            return name_rules(whole)
        except CheckpointError as error:
            raise refusal(facts, str(error)) from None

    @classmethod
    def heads_of(cls, facts: ModelFacts) -> Mapping[str, HeadSpec]:
        """Return nothing: vectors are hidden states."""
        return {}

    @torch.inference_mode()
    def pooled(self, task: str, rows: Tensor) -> Tensor:
        return rows.float()

    @torch.inference_mode()
    def forward(self, input_ids: Tensor, positions: Tensor) -> Tensor:
        """All sequences of a step in one row: positions and the cache tell them apart."""
        result = self._base_forward(
            input_ids=input_ids[None], position_ids=positions[None], use_cache=False
        )
        hidden: Tensor = result[0][0]
        return hidden

    @torch.inference_mode()
    def compute_logits(self, hidden: Tensor) -> Tensor:
        logits: Tensor = self._whole[0].forward(inputs_embeds=hidden[None]).logits[0]
        return logits.float()

    @torch.inference_mode()
    def greedy_tokens(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        return ops().greedy_tokens(self.compute_logits(hidden))

    def kv_cache_spec(self) -> KVCacheSpec:
        """From trial passes, the first time; without weights, as the configuration has it."""
        facts, stored = self._facts, self._options.cache_format
        if self._device.type == "meta":
            shapes: list[tuple[int, int, int | None]]
            shapes = [(facts.num_kv_heads, facts.head_size, None)] * facts.num_layers
        else:
            self._layers = self._layers or self._try()
            shapes = [(x.num_kv_heads, x.head_size, x.window) for x in self._layers]
        return KVCacheSpec(
            tuple(
                LayerCacheSpec(
                    num_kv_heads=num_heads,
                    head_size=head_size,
                    dtype=stored.dtype,
                    sliding_window=window,
                    has_row_scales=stored.has_row_scales,
                )
                for num_heads, head_size, window in shapes
            )
        )

    def _try(self) -> list[AttendingLayer]:
        trial = Trial(self._options.max_model_len)
        use_attention(self, self._config, TRIAL)
        try:
            trial.run(self._trial_forward, self._device)
        except CheckpointError as error:
            raise refusal(self._facts, str(error)) from None
        use_attention(self, self._config, PAGED)
        return trial.layers

    def bind_kv_cache(
        self, caches: Sequence[LayerCache], states: Sequence[StateCache] = ()
    ) -> None:
        for layer, cache in zip(self._layers, caches, strict=True):
            bound_attention(layer.module).bind_kv_cache(cache)

    @torch.inference_mode()
    def _trial_forward(self, input_ids: Tensor, positions: Tensor | None) -> Tensor:
        """Logits; without positions by the module as it would be called by itself."""
        given = {"attention_mask": torch.ones_like(input_ids)[None], "use_cache": False}
        try:
            if positions is None:
                return self._logits_of_whole(input_ids=input_ids[None], **given)
            given["position_ids"] = positions[None]
            hidden = self._base_forward(input_ids=input_ids[None], **given)[0][0]
            return self.compute_logits(hidden).clone()
        except CheckpointError:
            raise
        except Exception as error:
            raise CheckpointError(f"its module fails: {error}") from error

    def _logits_of_whole(self, **given: Any) -> Tensor:
        (whole,) = self._whole
        name = whole.base_model_prefix
        stand_in = getattr(whole, name)
        setattr(whole, name, self.get_submodule(name))
        try:
            logits: Tensor = whole.forward(**given).logits[0]
        finally:
            setattr(whole, name, stand_in)
        return logits.float()


class _Given(nn.Module):
    """Stands for the decoder: its last hidden state is what the caller gives."""

    def forward(self, *_: Any, inputs_embeds: Tensor, **__: Any) -> _Hidden:
        return _Hidden(inputs_embeds)


@dataclass(frozen=True, slots=True)
class _Hidden:
    """A decoder's result; everything but the last hidden state is absent."""

    last_hidden_state: Tensor

    def __getitem__(self, _: int) -> Tensor:
        return self.last_hidden_state

    def __getattr__(self, _: str) -> None:
        return None


def build(facts: ModelFacts, dtype: torch.dtype, attention: str = PAGED) -> Any:
    """transformers' module on the meta device; refuses what cannot run, by name."""
    kind = _module_class(facts)
    if kind._is_stateful:
        raise refusal(facts, "it keeps a state of its own")
    if not kind._can_set_attn_implementation():
        raise refusal(facts, _NO_INTERFACE)
    transformers.logging.set_verbosity_error()
    try:
        config = kind.config_class.from_dict(facts.hf_config)
    except Exception as error:
        raise refusal(facts, f"its configuration fails: {error}") from error
    if others := sorted(set(getattr(config, "layer_types", None) or ()) - _KINDS):
        raise refusal(facts, f"it has layers of the kind {others[0]}")
    try:
        with torch.device("meta"):
            model = kind._from_config(config, attn_implementation=attention, dtype=dtype)
    except Exception as error:
        if error.args == (attention,):  # a table of classes, by names of implementations
            raise refusal(facts, _NO_INTERFACE) from None
        raise refusal(facts, f"its module fails: {error}") from error
    return model.eval()


def _module_class(facts: ModelFacts) -> Any:
    """The class of the architecture, in transformers or in the checkpoint's own code."""
    if facts.architecture in _TABLES:
        return _class_of_table(facts, _TABLES[facts.architecture])
    kind = getattr(transformers, facts.architecture, None)
    own = (facts.hf_config.get("auto_map") or {}).get("AutoModelForCausalLM")
    if kind is None and own is not None:
        if not facts.trusts_code:
            raise CheckpointError(
                f"{facts.path} brings Python code for {facts.architecture}; pass "
                "--trust-remote-code to run it here"
            )
        kind = get_class_from_dynamic_module(own, facts.path)
    if not isinstance(kind, type) or not issubclass(kind, transformers.PreTrainedModel):
        raise refusal(facts, f"transformers {transformers.__version__} has no such model")
    return kind


def _class_of_table(facts: ModelFacts, table: str) -> Any:
    """transformers' class for the checkpoint's model_type, by one of its Auto classes."""
    model_type = facts.hf_config.get("model_type")
    try:
        kind = getattr(transformers, table)._model_mapping[transformers.CONFIG_MAPPING[model_type]]
    except KeyError:
        kind = None
    if not isinstance(kind, type):  # of some types it has several
        raise refusal(facts, f"transformers has no single {table} of model_type {model_type!r}")
    return kind


def refusal(facts: ModelFacts, reason: str) -> CheckpointError:
    line = " ".join(reason.split())
    return facts.error(
        f"transformers' module of {facts.architecture} cannot run here: {line[:300]}"
    )


def arguments(forward: Callable[..., Any]) -> Collection[str]:
    return inspect.signature(forward).parameters
