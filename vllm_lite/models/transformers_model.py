"""A model by transformers' own module, for what has no family here (--model-impl transformers).

The module is built without weights. Its linear layers, experts, embedding and head are replaced by
ours, its attention is routed to the paged cache, and the rest runs in torch, so that a step is not
recorded. Only what passes the trial of transformers_attention is run.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers.activations import ACT2FN
from transformers.conversion_mapping import get_checkpoint_conversion_mapping
from transformers.dynamic_module_utils import get_class_from_dynamic_module
from transformers.integrations.moe import _default_apply_gate

from vllm_lite.config.facts import ModelFacts
from vllm_lite.core.kv_spec import KVCacheSpec, LayerCacheSpec
from vllm_lite.distributed.groups import Shard, tp_size
from vllm_lite.errors import CheckpointError, UsageError
from vllm_lite.kernels.dispatch import ops
from vllm_lite.kernels.reference.experts import ExpertForm
from vllm_lite.layers.activation import activation_name
from vllm_lite.layers.attention import Attention, LayerCache
from vllm_lite.layers.embedding import ParallelLMHead, VocabParallelEmbedding
from vllm_lite.layers.experts import Expert, ExpertShape
from vllm_lite.layers.linear import ColumnParallelLinear, ParallelLinear, RowParallelLinear
from vllm_lite.layers.state import StateCache
from vllm_lite.layers.weights import NamedSlot, WeightedLayer, WeightSlot
from vllm_lite.loader.weight_rules import Rule
from vllm_lite.models.heads import HeadSpec
from vllm_lite.models.options import BuildOptions
from vllm_lite.models.transformers_attention import PAGED, TRIAL, AttendingLayer, Trial
from vllm_lite.quantization.experts import ExpertsKernel, check_experts, experts_kernel
from vllm_lite.quantization.unquantized import PlainTable

_SPLITS = {"colwise": ColumnParallelLinear, "rowwise": RowParallelLinear}
# How checkpoints name the matrices of an expert, where transformers stacks them.
_EXPERTS = "mlp.experts.*.gate_proj.weight"


class TransformersForCausalLM(nn.Module):
    """Any causal decoder that attends by transformers' attention interface."""

    def __init__(self, facts: ModelFacts, options: BuildOptions) -> None:
        super().__init__()
        self._facts, self._options = facts, options
        self._layers: list[AttendingLayer] = []
        self._device = torch.get_default_device()
        whole = build(facts, options.dtype)
        name, base, head = whole.base_model_prefix, whole.base_model, whole.get_output_embeddings()
        if base is whole or head is None or "position_ids" not in arguments(base.forward):
            raise refusal(facts, "it is no decoder that takes positions")
        self._config = whole.config
        self._base_forward = base.forward
        names = {module: path for path, module in whole.named_modules()}
        is_tied = head.weight is base.get_input_embeddings().weight
        replace_layers(base, name, options)
        own_head = _make_head(head, is_tied, base.get_input_embeddings(), options.at(names[head]))
        whole.set_submodule(names[head], own_head)
        setattr(whole, name, _Given())
        # What stands between the last hidden state and logits is the module's own.
        self._logits = whole.forward
        for child_name, child in whole.named_children():
            self.add_module(child_name, base if child_name == name else child)
        make_parameters(self, base, self._device)

    @staticmethod
    def weight_rules(facts: ModelFacts) -> Sequence[Rule]:
        """Return nothing: tensors have the names of the module."""
        return ()

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
        logits: Tensor = self._logits(inputs_embeds=hidden[None]).logits[0]
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
        self._set_attention(TRIAL)
        try:
            trial.run(self._trial_forward, self._device)
        except CheckpointError as error:
            raise refusal(self._facts, str(error)) from None
        self._set_attention(PAGED)
        return trial.layers

    def bind_kv_cache(
        self, caches: Sequence[LayerCache], states: Sequence[StateCache] = ()
    ) -> None:
        for layer, cache in zip(self._layers, caches, strict=True):
            assert isinstance(layer.module.attn, Attention)
            layer.module.attn.bind_kv_cache(cache)

    @torch.inference_mode()
    def _trial_forward(self, input_ids: Tensor, positions: Tensor) -> Tensor:
        try:
            result = self._base_forward(
                input_ids=input_ids[None],
                position_ids=positions[None],
                attention_mask=torch.ones_like(input_ids)[None],
                use_cache=False,
            )
        except CheckpointError:
            raise
        except Exception as error:
            raise CheckpointError(f"its module fails: {error}") from error
        hidden: Tensor = result[0][0]
        return hidden

    def _set_attention(self, name: str) -> None:
        configs = {id(m.config): m.config for m in self.modules() if hasattr(m, "config")}
        for config in (self._config, *configs.values()):
            config._attn_implementation = name


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


class _Embedding(VocabParallelEmbedding):
    """Our table for ids of any shape."""

    def forward(self, input_ids: Tensor) -> Tensor:
        return super().forward(input_ids.flatten()).view(*input_ids.shape, -1)


class _Head(ParallelLMHead):
    """Our head as a layer that is called."""

    def forward(self, hidden: Tensor) -> Tensor:
        return self.compute_logits(hidden[0])[None]


@dataclass(frozen=True, slots=True)
class _PlainRows:
    """An embedding that stays the module's own, for a head that is tied to it."""

    embedding: nn.Module

    @property
    def table(self) -> PlainTable:
        """This rank's rows."""
        weight = self.embedding.weight.detach()  # type: ignore[operator]
        rows = Shard.spread(len(weight), "vocabulary rows")
        return PlainTable(weight[rows.start : rows.start + rows.size])


class _Experts(nn.ModuleList):
    """Our experts in place of stacked matrices; routing stays the module's own."""

    kernel: ExpertsKernel

    def __init__(self, stacked: Any, options: BuildOptions) -> None:
        check_experts()
        number, double, hidden_size = stacked.gate_up_proj.shape
        experts = []
        for i in range(number):
            at = options.at(str(i))
            gate_up, down = (at.at(name).linear_method for name in ("gate_up_proj", "down_proj"))
            experts.append(Expert(gate_up, down, ExpertShape(hidden_size, double // 2)))
        super().__init__(experts)
        self._form = ExpertForm(act=activation_name(stacked.config.hidden_act))

    def forward(self, x: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
        """x [T, N], ids and weights [T, K] -> [T, N]."""
        return self.kernel(x.contiguous(), ids.int().contiguous(), weights.float().contiguous())

    def weight_slots(self) -> Iterator[NamedSlot]:
        yield from ()

    def process_weights_after_loading(self) -> None:
        """Pack all experts into one kernel."""
        experts = [expert for expert in self if isinstance(expert, Expert)]
        self._modules.clear()
        self.kernel = experts_kernel(
            [expert.first for expert in experts],
            [expert.down_proj.kernel for expert in experts],
            self._form,
        )


def build(facts: ModelFacts, dtype: torch.dtype, attention: str = PAGED) -> Any:
    """transformers' module on the meta device; refuses what cannot run, by name."""
    kind = _module_class(facts)
    if kind._is_stateful:
        raise refusal(facts, "it keeps a state of its own")
    if not kind._can_set_attn_implementation():
        raise refusal(facts, "it does not attend by transformers' attention interface")
    transformers.logging.set_verbosity_error()
    try:
        config = kind.config_class.from_dict(facts.hf_config)
        with torch.device("meta"):
            model = kind._from_config(config, attn_implementation=attention, dtype=dtype)
    except Exception as error:
        raise refusal(facts, f"its module fails: {error}") from error
    return model.eval()


def _module_class(facts: ModelFacts) -> Any:
    """The class of the architecture, in transformers or in the checkpoint's own code."""
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


def refusal(facts: ModelFacts, reason: str) -> CheckpointError:
    line = " ".join(reason.split())
    return CheckpointError(
        f"{facts.path}: transformers' module of {facts.architecture} cannot run here: {line[:300]}"
    )


def arguments(forward: Callable[..., Any]) -> Collection[str]:
    return inspect.signature(forward).parameters


def _conversions(config: Any) -> set[str]:
    """Names of checkpoints' tensors that transformers puts together as it loads them."""
    found = get_checkpoint_conversion_mapping(config.model_type) or ()
    return {name for conversion in found for name in conversion.source_patterns}


def replace_layers(base: Any, path: str, options: BuildOptions) -> None:
    """Put our layers in place of `base`'s, where it only calls them."""
    styles, conversions = _styles(base.config), _conversions(base.config)
    tokens = base.get_input_embeddings()
    for parent_name, parent in list(base.named_modules()):
        source = inspect.getsource(type(parent))
        for name, child in list(parent.named_children()):
            own_path = f"{parent_name}.{name}".removeprefix(".")
            at = options.at(f"{path}.{own_path}".removeprefix("."))
            if f".{name}.weight" in source:
                continue
            if type(child) is nn.Linear:
                parent.add_module(name, _make_linear(child, styles(own_path), at))
            elif _EXPERTS in conversions and _is_usual(child) and own_path.endswith("mlp.experts"):
                parent.add_module(name, _Experts(child, at))
            elif child is tokens and type(child) is nn.Embedding:
                rows, width = child.weight.shape
                parent.add_module(name, _Embedding(at.linear_method, rows, width))


def _styles(config: Any) -> Callable[[str], str | None]:
    """How ranks split the layer at a path; raises UsageError where they cannot."""
    if tp_size() == 1:
        return lambda path: None
    plan = config.base_model_tp_plan or {}
    others = set(plan.values()) - set(_SPLITS)
    if not plan or others:
        why = f"its plan has {', '.join(sorted(others))}" if others else "it has no plan"
        raise UsageError(
            f"--tensor-parallel-size {tp_size()}: {config.architectures[0]} cannot be split by "
            f"--model-impl transformers, as {why}; leave it out"
        )
    return lambda path: plan.get(re.sub(r"\d+", "*", path))


def _make_linear(layer: nn.Linear, style: str | None, options: BuildOptions) -> ParallelLinear:
    """Our layer for [..., N]."""
    method, bias = options.linear_method, layer.bias is not None
    sizes = (layer.in_features, layer.out_features)
    own: ParallelLinear
    if style is None:
        own = ParallelLinear(method, Shard.whole(sizes[0]), {"": Shard.whole(sizes[1])}, bias=bias)
    else:
        own = _SPLITS[style](method, *sizes, bias=bias)

    def forward(x: Tensor) -> Tensor:
        rows = x.reshape(-1, x.shape[-1]).contiguous()
        return own.kernel(rows).view(*x.shape[:-1], -1)

    own.forward = forward  # type: ignore[method-assign]
    return own


def _is_usual(module: Any) -> bool:
    """Whether it is a stack of experts as layers/experts computes them."""
    if getattr(module, "has_gate", None) is not True or module.has_bias or module.is_transposed:
        return False
    if module.has_post_expert_norm or not module.is_concatenated:
        return False
    act = ACT2FN[module.config.hidden_act]
    return type(module)._apply_gate is _default_apply_gate and type(module.act_fn) is type(act)


def _make_head(head: Any, is_tied: bool, tokens: Any, options: BuildOptions) -> nn.Module:
    """Our head, which gives float32 logits."""
    if head.bias is not None:
        return _make_linear(head, None, options)
    rows, width = head.weight.shape
    tied_to: Any = None
    if is_tied:
        tied_to = tokens if isinstance(tokens, _Embedding) else _PlainRows(tokens)
    return _Head(options.linear_method, rows, width, tied_to=tied_to)


def make_parameters(model: nn.Module, base: Any, device: torch.device) -> None:
    """Give memory and slots to what stays the module's own, in all of `model`."""
    splits = _EXPERTS in _conversions(base.config)
    for module in model.modules():
        _own_parameters(module, device, splits)
        if any(buffer.is_meta for buffer in module.buffers(recurse=False)):
            _make_buffers(base, module, device)


def _own_parameters(module: Any, device: torch.device, splits_experts: bool) -> None:
    if isinstance(module, WeightedLayer):
        return
    slots: list[NamedSlot] = []
    for name, parameter in module.named_parameters(recurse=False):
        data = torch.empty_like(parameter, device=device, requires_grad=False)
        module.register_parameter(name, nn.Parameter(data, requires_grad=False))
        slots += _slots(name, data, splits_experts)
    for name, buffer in module.named_buffers(recurse=False):
        if name not in module._non_persistent_buffers_set:
            data = torch.empty_like(buffer, device=device)
            module.register_buffer(name, data)
            slots += _slots(name, data, splits_experts)
    if slots:
        module.weight_slots = lambda: iter(slots)
        module.process_weights_after_loading = lambda: None


def _slots(name: str, data: Tensor, splits_experts: bool) -> Iterator[NamedSlot]:
    """One slot, or one for each expert's matrix where a checkpoint has them one by one."""
    if data.dim() != 3 or not splits_experts:
        yield NamedSlot("", name, WeightSlot.whole(data))
        return
    parts = ("gate_proj", "up_proj") if name == "gate_up_proj" else (name,)
    for i, matrices in enumerate(data):
        for part, matrix in zip(parts, matrices.chunk(len(parts)), strict=True):
            yield NamedSlot("", f"{i}.{part}.weight", WeightSlot.whole(matrix))


@torch.no_grad()
def _make_buffers(owner: Any, module: nn.Module, device: torch.device) -> None:
    """Buffers that no checkpoint holds, as transformers computes them."""
    for name in module._non_persistent_buffers_set:
        buffer = module._buffers[name]
        if buffer is not None:
            module._buffers[name] = torch.empty_like(buffer, device=device)
    owner._init_weights(module)
