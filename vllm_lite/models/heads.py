"""Heads of pooling models: the small layers behind pooled hidden states, as data.

A head is a sequence of steps for each task. Sums are float32, and a row's do not depend on the
other rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn

from vllm_lite.config.facts import ModelFacts
from vllm_lite.config.pooling import PoolingFacts
from vllm_lite.errors import CheckpointError
from vllm_lite.kernels.dispatch import ops
from vllm_lite.layers.norm import NormSpec, make_norm
from vllm_lite.layers.weights import NamedSlot, WeightSlot
from vllm_lite.loader.weight_rules import AnyRule, Part, Rule, renamed
from vllm_lite.quantization.method import LinearKernel
from vllm_lite.quantization.unquantized import plain_kernel


@dataclass(frozen=True, slots=True, kw_only=True)
class Dense:
    """A linear layer, by its name in checkpoints."""

    name: str
    # Its name in others.
    other_name: str = ""
    # Of its outputs.
    size: int
    bias: bool = True
    # Weights and inputs have the model's type unless another is asked for: a vocabulary is large.
    is_large: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadNorm:
    """A normalisation, by its name in checkpoints."""

    name: str
    norm: NormSpec


# The second column less the first.
SECOND_LESS_FIRST = "second less first"
# Text is the name of an activation (kernels/reference/elementwise.py), or SECOND_LESS_FIRST.
HeadStep = Dense | HeadNorm | str
HeadSpec = Sequence[HeadStep]


def classifier(facts: ModelFacts, name: str, *, bias: bool = True) -> Dense:
    """The layer `name` whose outputs are the checkpoint's classes."""
    return Dense(name=name, size=facts.pooling.num_labels if facts.pooling else 0, bias=bias)


def head_rules(heads: Mapping[str, HeadSpec]) -> list[Rule]:
    """Rules for the layers of `heads`, which a model holds as its module `heads`."""
    steps = [step for head in heads.values() for step in head if not isinstance(step, str)]
    others = {
        step.other_name: Rule(step.other_name, (Part(f"heads.{step.name}"),), is_alternative=True)
        for step in steps
        if isinstance(step, Dense) and step.other_name
    }
    return [*renamed({step.name: f"heads.{step.name}" for step in steps}), *others.values()]


def with_dense(heads: Mapping[str, HeadSpec], pooling: PoolingFacts) -> Mapping[str, HeadSpec]:
    """`heads` with sentence-transformers' dense layers behind those of vectors."""
    steps: list[HeadStep] = []
    for dense in pooling.dense:
        name = f"{dense.folder}.linear"
        steps.append(Dense(name=name, size=dense.out_size, bias=dense.has_bias))
        if dense.activation != "identity":
            steps.append(dense.activation)
    if not steps:
        return heads
    return {**heads, **{task: [*heads.get(task, ()), *steps] for task in ("embed", "token_embed")}}


def score_heads(facts: ModelFacts) -> Mapping[str, HeadSpec]:
    """The linear layer for classes that transformers' decoders have, or that is made of tokens'."""
    pooling = facts.pooling
    if pooling is None or "embed" in pooling.tasks:
        return {}
    # That of tokens alone has a bias, and in GPT-2's time another name.
    is_of_tokens = "classify" not in pooling.tasks
    other = "classifier" if is_of_tokens else ""
    head: list[HeadStep] = [
        Dense(name="score", other_name=other, size=pooling.num_labels, bias=is_of_tokens)
    ]
    if pooling.method:
        size = len(pooling.classifier_from_token)
        head = [Dense(name="score", size=size, bias=False)]
    if pooling.method == "from_2_way_softmax":
        head.append(SECOND_LESS_FIRST)
    return dict.fromkeys(pooling.tasks, head)


def tied(rules: Iterable[AnyRule], layer: str, to: Part) -> list[AnyRule]:
    """`rules`, in which what fills `layer` of the model also fills `to`."""
    return [
        replace(rule, parts=(*rule.parts, to))
        if isinstance(rule, Rule) and any(part.target == layer for part in rule.parts)
        else rule
        for rule in rules
    ]


def head_of_tokens(rules: Iterable[AnyRule], facts: ModelFacts) -> list[AnyRule]:
    """`rules`, in which the language model's rows of classes' tokens fill the head."""
    pooling = facts.pooling
    assert pooling is not None
    if facts.hf_config.get("has_class_rows"):  # of a GGUF file: yes, no
        return [*rules, Rule("cls.output", (Part("heads.score", torch.tensor([1, 0]), 2),))]
    is_tied = facts.hf_config.get("tie_word_embeddings")
    source = "model.embed_tokens" if is_tied else "lm_head"
    ids = torch.tensor(pooling.classifier_from_token)
    part = Part("heads.score", ids, facts.vocab_size)
    changed = tied(rules, source, part)
    if not any(isinstance(rule, Rule) and part in rule.parts for rule in changed):
        changed.append(Rule(source, (Part(source), part)))
    return changed


class Heads(nn.Module):
    """A model's heads by task; tasks share the layers of one name."""

    def __init__(
        self,
        heads: Mapping[str, HeadSpec],
        hidden_size: int,
        dtype: torch.dtype,
        pooling: PoolingFacts | None = None,
    ) -> None:
        """Tasks without a head answer the pooled rows themselves; `dtype` is the model's."""
        super().__init__()
        kind = pooling and pooling.head_dtype
        large = dtype if kind in (None, "model") else getattr(torch, str(kind))
        usual = torch.float32 if kind is None else large
        if pooling is not None:
            heads = with_dense(heads, pooling)
        self._layers: dict[str, _Product | _Norm] = {}
        self._steps: dict[str, list[_Product | _Norm | partial[Tensor]]] = {}
        for task, head in heads.items():
            steps, size = self._steps.setdefault(task, []), hidden_size
            for step in head:
                if isinstance(step, str):
                    steps.append(partial(_activated, step))
                    continue
                if step.name not in self._layers:
                    self._layers[step.name] = (
                        _Product(step, size, large if step.is_large else usual)
                        if isinstance(step, Dense)
                        else _Norm(step, size)
                    )
                steps.append(self._layers[step.name])
                size = step.size if isinstance(step, Dense) else size

    def forward(self, task: str, rows: Tensor) -> Tensor:
        """Pooled hidden states [R, N] -> [R, M] float32."""
        rows = rows.float()
        for step in self._steps.get(task, ()):
            rows = step(rows)
        return rows

    def weight_slots(self) -> Iterator[NamedSlot]:
        for name, layer in self._layers.items():
            for suffix, slot in layer.slots():
                yield NamedSlot("", f"{name}.{suffix}", slot)

    def process_weights_after_loading(self) -> None:
        for layer in self._layers.values():
            layer.finish()


class _Product:
    kernel: LinearKernel

    def __init__(self, step: Dense, inputs: int, dtype: torch.dtype) -> None:
        if step.size < 1:
            raise CheckpointError(f"its configuration gives the head's {step.name} no outputs")
        self._dtype = dtype
        self._weight = torch.empty(step.size, inputs, dtype=dtype)
        self._bias = torch.empty(step.size, dtype=dtype) if step.bias else None

    def slots(self) -> Iterator[tuple[str, WeightSlot]]:
        yield "weight", WeightSlot.whole(self._weight)
        if self._bias is not None:
            yield "bias", WeightSlot.whole(self._bias)

    def finish(self) -> None:
        self.kernel = plain_kernel(self._weight, self._bias, torch.float32)
        del self._weight

    def __call__(self, rows: Tensor) -> Tensor:
        return self.kernel(rows.to(self._dtype))


class _Norm:
    def __init__(self, step: HeadNorm, size: int) -> None:
        self._norm = make_norm(step.norm, size, torch.float32)

    def slots(self) -> Iterator[tuple[str, WeightSlot]]:
        for _, suffix, slot in self._norm.weight_slots():
            yield suffix, slot

    def finish(self) -> None:
        self._norm.process_weights_after_loading()

    def __call__(self, rows: Tensor) -> Tensor:
        return self._norm.forward(rows)


def _activated(name: str, rows: Tensor) -> Tensor:
    if name == SECOND_LESS_FIRST:
        return rows[:, 1:2] - rows[:, 0:1]
    return ops().activation(rows, name)
