"""The drafter of a worker: its model is loaded, has a part of the cache, and guesses for steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from vllm_lite.config.checkpoints.architectures import DRAFTS
from vllm_lite.config.draft import draft_config
from vllm_lite.config.vllm import VllmConfig
from vllm_lite.core.kv_group import cache_groups
from vllm_lite.core.kv_spec import KVCacheSpec
from vllm_lite.kernels.cpu.mapped_memory import Allocations, packed_weights
from vllm_lite.layers.attention import LayerCache
from vllm_lite.layers.state import StateCache
from vllm_lite.loader.heads import with_stored_tensors
from vllm_lite.loader.load import load_model
from vllm_lite.models.eagle3 import tapped_layers
from vllm_lite.models.interfaces import CausalLM
from vllm_lite.models.taps import TappedForward
from vllm_lite.spec_decode.drafter import Drafter, make_drafter
from vllm_lite.worker.batch import HostInputs
from vllm_lite.worker.drafting.custom import CustomDrafts
from vllm_lite.worker.drafting.heads import HeadDrafts, MedusaDrafts
from vllm_lite.worker.drafting.interface import NO_DRAFTS, DraftRows, StepDrafter
from vllm_lite.worker.drafting.model import DraftModel, Forward, most_draft_tokens
from vllm_lite.worker.request_states import RequestStates
from vllm_lite.worker.step_plan import Int32s

# Makes a faster forward pass of a model, for so many tokens at a time; or of another `forward`.
Record = Callable[..., Forward]


class TextDrafts(StepDrafter):
    """Drafts from texts alone, request by request."""

    def __init__(self, drafter: Drafter, states: RequestStates) -> None:
        self._drafter, self._states = drafter, states

    def propose(self, rows: DraftRows) -> Sequence[Int32s]:
        states = self._states
        token_ids, scopes = states.tokens.token_ids, states.scopes
        columns = zip(rows.slots.tolist(), rows.ends.tolist(), rows.most.tolist(), strict=True)
        return [
            self._drafter.propose(token_ids[slot, :end], most, scopes[slot])
            if most > 0
            else NO_DRAFTS
            for slot, end, most in columns
        ]

    def remember(self, request_id: str, num_unread: int) -> None:
        self._drafter.remember(*self._states.output_of(request_id, num_unread))


class Models:
    """The model, and what drafts for it, another one or a head; their layers share blocks."""

    def __init__(self, target: CausalLM, draft: Any = None, taps: Sequence[int] = ()) -> None:
        """`taps`: layers of the target whose inputs the draft reads."""
        self.target, self.draft = target, draft
        self.tapped = TappedForward(target, taps) if taps else None

    def kv_cache_spec(self) -> KVCacheSpec:
        """The cache of the target's layers, then of the draft's."""
        spec = self.target.kv_cache_spec()
        if self.draft is None:
            return spec
        return replace(spec, layers=spec.layers + self.draft.kv_cache_spec().layers)

    def bind_kv_cache(self, caches: Sequence[LayerCache], states: Sequence[StateCache]) -> None:
        """Use these, one for each layer of the spec, from now on."""
        count = len(self.target.kv_cache_spec().layers)
        self.target.bind_kv_cache(caches[:count], states)
        if self.draft is not None:
            self.draft.bind_kv_cache(caches[count:])


def load_models(config: VllmConfig, device: str, memory: Sequence[Allocations] = ()) -> Models:
    """The models of `config`, ready to run; raises CheckpointError.

    `memory`: what owns the packed weights of the model and of the draft model, where anything does.
    """
    target_memory, draft_memory = map(packed_weights.owned_by, memory or (None, None))
    with target_memory:
        target = load_model(config, device)
    if config.draft is None:
        return Models(target)
    own = draft_config(config)
    with draft_memory:
        if config.draft.architecture not in DRAFTS:
            return Models(target, load_model(own, device))
        head: Any = load_model(with_stored_tensors(own), device)
    head.share(target)
    taps: Sequence[int] = ()
    if config.speculative.method == "eagle3":
        taps = tapped_layers(own.facts, config.facts.num_layers)
    return Models(target, head, taps)


def target_forward(
    config: VllmConfig,
    models: Models,
    drafter: StepDrafter | None,
    record: Record | None = None,
) -> Forward:
    """The target's forward pass, from which `drafter` takes what it reads of it."""
    target, tapped = models.target, models.tapped
    most = config.scheduler.max_num_batched_tokens
    if tapped is None or not isinstance(drafter, HeadDrafts):
        return target.forward if record is None else record(target, most)
    forward: Callable[..., Any] = tapped
    if record is not None:
        forward = record(target, most, forward=tapped)

    def run(input_ids: Tensor, positions: Tensor) -> Tensor:
        hidden, *taps = forward(input_ids, positions)
        drafter.taps = taps
        return hidden  # type: ignore[no-any-return]

    return run


def make_step_drafter(
    config: VllmConfig,
    models: Models,
    states: RequestStates,
    device: torch.device,
    record: Record | None = None,
) -> StepDrafter | None:
    """The drafter of `config` over a runner's `states`; None where nothing is drafted."""
    draft: Any = models.draft
    if config.speculative.method == "custom_class":
        return CustomDrafts(config, states)
    if draft is None:
        drafter = make_drafter(config.speculative)
        return None if drafter is None else TextDrafts(drafter, states)
    own = draft_config(config)
    if config.speculative.method == "medusa":
        return MedusaDrafts(draft, states)
    inputs = HostInputs(states, device)
    if config.speculative.method != "draft_model":
        return HeadDrafts(own, draft, inputs)
    forward: Forward = draft.forward
    if record is not None:
        forward = record(draft, most_draft_tokens(own))
    spec = models.kv_cache_spec()
    groups, last = cache_groups(spec), len(spec.layers) - 1
    group = next(i for i, group in enumerate(groups) if last in group.layers)
    return DraftModel(own, draft, forward, inputs, group)
