"""A model's step as one call: its CPU operations recorded once, then replayed in C++.

What CUDA graphs are to a GPU. The model's own forward pass is what is recorded, so that no family
is described twice; a pass that computes anything outside the compiled operations is refused.
Knows no model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from vllm_lite import _cpu
from vllm_lite.kernels.calls import recorded_by

_NEW = {"aten::empty", "aten::empty_like", "aten::new_empty"}
_VIEWS = {"aten::view", "aten::split_with_sizes", "aten::slice", "aten::select", "aten::detach"}


class UnrecordableError(Exception):
    """The step does something that a program cannot repeat."""


@dataclass(frozen=True, slots=True)
class StepTensors:
    """What a step is given: T tokens of R requests; see AttentionMetadata for the last three."""

    input_ids: Tensor  # [T] int64
    positions: Tensor  # [T] int64
    slot_mapping: Tensor  # [T] int64
    block_table: Tensor  # [R, M] int32
    query_start_loc: Tensor  # [R + 1] int32
    seq_lens: Tensor  # [R] int32

    def as_integers(self) -> tuple[int, ...]:
        """Sizes and addresses, in the order of _cpu.Program."""
        table = self.block_table
        num_requests, width = table.shape
        return (
            len(self.input_ids),
            self.input_ids.data_ptr(),
            self.positions.data_ptr(),
            self.slot_mapping.data_ptr(),
            table.data_ptr(),
            self.query_start_loc.data_ptr(),
            self.seq_lens.data_ptr(),
            num_requests,
            width,
            table.stride(0),
        )

    def check(self) -> None:
        """Raise ValueError unless the tensors are as C++ will read them."""
        num_tokens, num_requests = len(self.input_ids), len(self.block_table)
        for tensor, dtype, size in (
            (self.input_ids, torch.int64, num_tokens),
            (self.positions, torch.int64, num_tokens),
            (self.slot_mapping, torch.int64, num_tokens),
            (self.query_start_loc, torch.int32, num_requests + 1),
            (self.seq_lens, torch.int32, num_requests),
        ):
            if tensor.dtype != dtype or tensor.shape != (size,) or not tensor.is_contiguous():
                raise ValueError(f"a step takes dense {dtype} of {size} entries")
        if self.block_table.dtype != torch.int32 or self.block_table.stride(1) != 1:
            raise ValueError("block_table must be int32 with dense rows")


class RecordedStep:
    """The replay of one forward pass, for steps of up to `max_tokens` tokens."""

    def __init__(
        self, forward: Callable[[StepTensors], Tensor], example: StepTensors, max_tokens: int
    ) -> None:
        """Record `forward`, given `example`; raises UnrecordableError.

        The weights and caches that it uses must live, and stay where they are, as long as this.
        """
        program = _cpu.Program(*example.as_integers())
        watch = _Watch()
        try:
            with recorded_by(program), watch:
                result = forward(example)
            storages = {t.untyped_storage().data_ptr(): t.untyped_storage() for t in watch.made}
            sizes = [(address, storage.nbytes()) for address, storage in storages.items()]
            num_bytes = program.finish(sizes, result.data_ptr(), max_tokens)
        except ValueError as error:
            raise UnrecordableError(str(error)) from None
        if result.dim() != 2 or not result.is_contiguous():
            raise UnrecordableError("the result is not a dense matrix")
        self._program = program
        self._memory = torch.empty(num_bytes, dtype=torch.uint8)
        start = program.place(self._memory.data_ptr()) - self._memory.data_ptr()
        size = max_tokens * result.shape[1] * result.element_size()
        whole = self._memory[start : start + size].view(result.dtype)
        self._result = whole.view(max_tokens, result.shape[1])

    def run(self, step: StepTensors) -> Tensor:
        """The result [T, N] for `step`, in memory that the next step overwrites."""
        step.check()
        self._program.run(*step.as_integers())
        return self._result[: len(step.input_ids)]

    def profile(self, step: StepTensors) -> list[tuple[str, float]]:
        """Run `step`; each operation's name and the seconds that it took, in order."""
        step.check()
        return self._program.profile(*step.as_integers())

    @property
    def num_bytes(self) -> int:
        """Bytes that the temporaries of the largest step take."""
        return self._memory.nbytes


class _Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Keeps what torch allocates, so that addresses stay apart, and refuses what it computes."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.made: list[Tensor] = []

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # There is no compiler to keep out, and doing so would load it: a second of start-up.
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
