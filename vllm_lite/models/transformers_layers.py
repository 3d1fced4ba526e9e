"""Our layers in place of those of a module of transformers, and slots for what stays its own.

Linear layers, activations, stacked experts, the embedding and the head are replaced where their
module only calls them. What is not keeps its code; its parameters get memory, and slots under its
own names.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers.activations import ACT2FN
from transformers.integrations.moe import _default_apply_gate

from vllm_lite.distributed.groups import Shard, tp_size
from vllm_lite.errors import UsageError
from vllm_lite.kernels.dispatch import ops
from vllm_lite.kernels.reference.experts import ExpertForm
from vllm_lite.layers.activation import ACTIVATIONS, activation_name
from vllm_lite.layers.embedding import ParallelLMHead, VocabParallelEmbedding
from vllm_lite.layers.experts import Expert, ExpertShape
from vllm_lite.layers.linear import ColumnParallelLinear, ParallelLinear, RowParallelLinear
from vllm_lite.layers.weights import NamedSlot, WeightedLayer, WeightSlot
from vllm_lite.models.options import BuildOptions
from vllm_lite.models.transformers_names import EXPERTS, merged_names
from vllm_lite.quantization.experts import ExpertsKernel, check_experts, experts_kernel
from vllm_lite.quantization.method import EmbeddingTable
from vllm_lite.quantization.unquantized import PlainTable

_SPLITS = {"colwise": ColumnParallelLinear, "rowwise": RowParallelLinear}


class _Embedding(VocabParallelEmbedding):
    """Our table for ids of any shape."""

    def forward(self, input_ids: Tensor) -> Tensor:
        return super().forward(input_ids.flatten()).view(*input_ids.shape, -1)


class _Head(ParallelLMHead):
    """Our head as a layer that is called."""

    def forward(self, hidden: Tensor) -> Tensor:
        return self.compute_logits(hidden[0])[None]


class _Activation(nn.Module):
    """Our activation: a row has the same bits in any batch, unlike the last ones of torch's."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, x.shape[-1]).contiguous()
        return ops().activation(rows, self._name).view(x.shape)


@dataclass(frozen=True, slots=True)
class _Rows:
    """The table of an embedding, ours or the module's own, for a head that is tied to it."""

    embedding: nn.Module

    @property
    def table(self) -> EmbeddingTable:
        """This rank's rows."""
        if isinstance(self.embedding, _Embedding):
            return self.embedding.table
        weight = self.embedding.weight.detach()  # type: ignore[operator]
        rows = Shard.spread(len(weight), "vocabulary rows")
        return PlainTable(weight[rows.start : rows.start + rows.size])


class _Experts(nn.ModuleList, WeightedLayer):
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

    def process_weights_after_loading(self) -> None:
        experts = [expert for expert in self if isinstance(expert, Expert)]
        self._modules.clear()
        self.kernel = experts_kernel(
            [expert.first for expert in experts],
            [expert.down_proj.kernel for expert in experts],
            self._form,
        )


def replace_layers(base: Any, path: str, options: BuildOptions) -> None:
    """Put our layers in place of `base`'s, where it only calls them."""
    styles, merged = _styles(base.config), merged_names(base)
    tokens = base.get_input_embeddings()
    activations = {type(ACT2FN[theirs]): ours for theirs, ours in ACTIVATIONS.items()}
    for parent_name, parent in list(base.named_modules()):
        source = inspect.getsource(type(parent))
        for name, child in list(parent.named_children()):
            own_path = f"{parent_name}.{name}".removeprefix(".")
            at = options.at(f"{path}.{own_path}".removeprefix("."))
            if f".{name}.weight" in source:
                continue
            if type(child) is nn.Linear:
                parent.add_module(name, _make_linear(child, styles(own_path), at))
            elif type(child) in activations:
                parent.add_module(name, _Activation(activations[type(child)]))
            elif EXPERTS in merged and _is_usual(child) and own_path.endswith("mlp.experts"):
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
    sizes, bias = (layer.in_features, layer.out_features), layer.bias is not None
    own: ParallelLinear
    if style is None:
        own = options.whole_linear(*sizes, bias=bias)
    else:
        own = _SPLITS[style](options.linear_method, *sizes, bias=bias)

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


def make_head(head: Any, is_tied: bool, tokens: Any, options: BuildOptions) -> nn.Module:
    """Our head, which gives float32 logits."""
    rows, width = head.weight.shape
    tied_to: Any = _Rows(tokens) if is_tied else None
    has_bias = head.bias is not None
    return _Head(options.linear_method, rows, width, tied_to=tied_to, bias=has_bias)


def make_parameters(model: nn.Module, base: Any, device: torch.device) -> None:
    """Give memory and slots to what stays the module's own, in all of `model`."""
    splits = EXPERTS in merged_names(base)
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
