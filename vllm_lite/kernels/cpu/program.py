"""A model's step as one call: its CPU operations recorded once, then replayed in C++.

Like CUDA graphs on a GPU. It records the model's own forward pass, so that no family is
described twice; a pass that computes anything outside the compiled operations is refused.
Knows no model.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import vllm_lite._cpu as _cpu
from vllm_lite.kernels.cpu.calls import recorded_by

_NEW = {"aten::empty", "aten::empty_like", "aten::new_empty"}
_VIEWS = {"aten::view", "aten::split_with_sizes", "aten::slice", "aten::select", "aten::detach"}

# A step's inputs by the names of their StepInputs; read-only.
StepTensors = Mapping[str, Tensor]
# One or several results of a step: dense, with a row for each token.
Results = Tensor | tuple[Tensor, ...]


class UnrecordableError(Exception):
    """The step does something that a program cannot repeat."""


@dataclass(frozen=True, slots=True)
class StepInput:
    """Type and shape of an input tensor of a step.

    A size is "T" for the step's tokens, "R" for its requests, "R+1", or a number. "*", allowed
    only last, is any size, and the rows of such a tensor may be any distance apart.
    """

    dtype: torch.dtype
    shape: tuple[str | int, ...]

    @property
    def has_any_width(self) -> bool:
        return self.shape[-1] == "*"


# Inputs of decoders: tokens and AttentionMetadata.
STEP_INPUTS = {
    "input_ids": StepInput(torch.int64, ("T",)),
    "positions": StepInput(torch.int64, ("T",)),
    "slot_mapping": StepInput(torch.int64, ("T",)),
    "block_table": StepInput(torch.int32, ("R", "*")),
    "query_start_loc": StepInput(torch.int32, ("R+1",)),
    "seq_lens": StepInput(torch.int32, ("R",)),
}
# Further inputs of models with state-space layers.
STATE_INPUTS = {
    "state_in": StepInput(torch.int32, ("R",)),
    "state_out": StepInput(torch.int32, ("T",)),
}


@dataclass(frozen=True, slots=True)
class Variant:
    """A forward pass to record, its inputs, and an example of them."""

    forward: Callable[[StepTensors], Results]
    example: StepTensors
    inputs: Mapping[str, StepInput]


class RecordedStep:
    """Replays one forward pass; made by `record_variants`."""

    def __init__(
        self, program: _cpu.Program, table: _InputTable, memory: Tensor, results: Results
    ) -> None:
        self._program = program
        self._table = table
        self._memory = memory
        self._results = results

    def run(self, step: StepTensors) -> Any:
        """Return the Results for `step` in memory that the next step overwrites."""
        numbers = self._table.numbers(step)
        self._program.run(numbers)
        num_tokens = numbers[0]
        if isinstance(self._results, Tensor):
            return self._results[:num_tokens]
        return tuple(result[:num_tokens] for result in self._results)

    def profile(self, step: StepTensors) -> list[tuple[str, float]]:
        """Run `step` and return each operation's name and seconds, in order."""
        timings: list[tuple[str, float]] = self._program.profile(self._table.numbers(step))
        return timings

    @property
    def num_bytes(self) -> int:
        """Bytes of the largest step's temporaries over all variants."""
        return self._memory.nbytes


def record_step(
    forward: Callable[[StepTensors], Results],
    example: StepTensors,
    max_tokens: int,
    inputs: Mapping[str, StepInput] = STEP_INPUTS,
) -> RecordedStep:
    """Record `forward`, given `example`, for steps of up to `max_tokens` tokens.

    Raises UnrecordableError. The weights and caches that it uses must stay alive, at the same
    addresses, as long as the recording.
    """
    (recorded,) = record_variants([Variant(forward, example, inputs)], max_tokens)
    return recorded


def record_variants(variants: Sequence[Variant], max_tokens: int) -> list[RecordedStep]:
    """Record each variant, as `record_step` does; they share one piece of memory."""
    recordings = [_Recording(variant, max_tokens) for variant in variants]
    memory = torch.empty(max(each.num_bytes for each in recordings), dtype=torch.uint8)
    return [each.place(memory, max_tokens) for each in recordings]


class _InputTable:
    """Converts steps to the numbers a program reads: sizes, then inputs' addresses and strides."""

    def __init__(self, inputs: Mapping[str, StepInput]) -> None:
        self._inputs = inputs
        self._by_tokens = _one_sized_by("T", inputs)
        self._by_requests = _one_sized_by("R", inputs)
        self._sizes = (-1, -1)
        # For each input of steps of these sizes: name, type, shape and dense row stride.
        self._expected: list[tuple[str, torch.dtype, tuple[int, ...], int]] = []

    def numbers(self, step: StepTensors) -> list[int]:
        """Convert `step`; ValueError unless the tensors are as C++ will read them."""
        num_tokens = step[self._by_tokens].shape[0]
        num_requests = step[self._by_requests].shape[0] if self._by_requests else 0
        if (num_tokens, num_requests) != self._sizes:
            self._expect(num_tokens, num_requests)
        result = [num_tokens, num_requests]
        for name, dtype, shape, stride in self._expected:
            tensor = step[name]
            given = tensor.shape
            if tensor.dtype is dtype and given == shape and tensor.is_contiguous():
                result += (tensor.data_ptr(), stride, shape[-1])
            elif stride < 0 and _is_table(tensor, dtype, shape):
                result += (tensor.data_ptr(), tensor.stride(0), given[-1])
            else:
                raise ValueError(
                    f"{name} must be dense {dtype} {list(self._inputs[name].shape)} for "
                    f"{num_tokens} tokens of {num_requests} requests, "
                    f"got {tensor.dtype} {list(given)}"
                )
        return result

    def _expect(self, num_tokens: int, num_requests: int) -> None:
        sizes: dict[str | int, int] = {"T": num_tokens, "R": num_requests, "R+1": num_requests + 1}
        self._expected = []
        for name, given in self._inputs.items():
            shape = tuple(int(sizes.get(size, -1 if size == "*" else size)) for size in given.shape)
            stride = -1 if given.has_any_width else math.prod(shape[1:])
            self._expected.append((name, given.dtype, shape, stride))
        self._sizes = (num_tokens, num_requests)

    def sizes_in_bytes(self, step: StepTensors) -> list[int]:
        return [step[name].nbytes for name in self._inputs]


def _is_table(tensor: Tensor, dtype: torch.dtype, shape: tuple[int, ...]) -> bool:
    """Whether the tensor has `shape` apart from its width, and dense rows."""
    rows = tensor.dtype is dtype and tensor.shape[:-1] == shape[:-1]
    return rows and (tensor.stride(-1) == 1 or tensor.shape[-1] == 1)


def _one_sized_by(size: str, inputs: Mapping[str, StepInput]) -> str:
    return next((name for name, given in inputs.items() if given.shape[0] == size), "")


class _Recording:
    """A program without memory."""

    def __init__(self, variant: Variant, max_tokens: int) -> None:
        example = variant.example
        self._table = _InputTable(variant.inputs)
        numbers = self._table.numbers(example)
        self._program = _cpu.Program(numbers, self._table.sizes_in_bytes(example))
        watch = _Watch()
        try:
            with recorded_by(self._program), watch:
                self._results = variant.forward(example)
            results = self._listed()
            storages = {t.untyped_storage().data_ptr(): t.untyped_storage() for t in watch.made}
            sizes = [(address, storage.nbytes()) for address, storage in storages.items()]
            addresses = [result.data_ptr() for result in results]
            self.num_bytes = self._program.finish(sizes, addresses, max_tokens)
        except ValueError as error:
            raise UnrecordableError(str(error)) from None
        if any(len(r) != numbers[0] or not r.is_contiguous() for r in results):
            raise UnrecordableError("a result is not dense with a row for each token")

    def _listed(self) -> tuple[Tensor, ...]:
        return (self._results,) if isinstance(self._results, Tensor) else self._results

    def place(self, memory: Tensor, max_tokens: int) -> RecordedStep:
        """Place the recording in `memory` of at least num_bytes."""
        addresses = self._program.place(memory.data_ptr())
        wholes = []
        for result, address in zip(self._listed(), addresses, strict=True):
            shape = (max_tokens, *result.shape[1:])
            start = address - memory.data_ptr()
            size = math.prod(shape) * result.element_size()
            wholes.append(memory[start : start + size].view(result.dtype).view(shape))
        whole = wholes[0] if isinstance(self._results, Tensor) else tuple(wholes)
        return RecordedStep(self._program, self._table, memory, whole)


class _Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Keeps tensors alive, so that addresses stay distinct, and refuses torch's computations."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.made: list[Tensor] = []

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # Asking torch's compiler would import it: a second of start-up.
        return False

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        name = func.name().partition(".")[0]
        if name not in _NEW | _VIEWS:
            raise UnrecordableError(f"{name} is computed by torch")
        result = func(*args, **(kwargs or {}))
        if name in _NEW:
            self.made.append(result)
        return result
