"""The interface of a checkpoint format, named tensors that can fill a slot, and its messages."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from vllm_lite.errors import CheckpointError
from vllm_lite.layers.weights import WeightSlot
from vllm_lite.loader.weight_rules import Part

# As many tensors as a layer has that is no mixture of experts.
_FEW = 16


class CheckpointTensor(Protocol):
    """One tensor of a checkpoint, not yet read; `name` is the checkpoint's."""

    @property
    def name(self) -> str: ...

    @property
    def path(self) -> Path | None:
        """The file that holds it, or its values; None: no file does."""

    @property
    def shown(self) -> str:
        """The file and the name in it, for messages."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def nbytes(self) -> int:
        """Bytes that reading it moves, for progress."""

    def fill(self, slot: WeightSlot, part: Part) -> None:
        """Read this rank's part of a view into a slot; raises CheckpointError on damage."""


def shown_together(tensors: Sequence[CheckpointTensor], word: str) -> str:
    """How messages call several tensors, with `word` between them; a file is named once."""
    first, *others = tensors
    beside = (tensor.shown.removeprefix(f"{first.path}: the tensor ") for tensor in others)
    return f" {word} ".join((first.shown, *beside))


@contextmanager
def refusals_name(tensors: Sequence[CheckpointTensor]) -> Iterator[None]:
    """Have errors of a layer that these tensors fill name the file and those they speak of."""
    try:
        yield
    except CheckpointError as error:
        raise _named(error, tensors) from None


def _named(error: CheckpointError, tensors: Sequence[CheckpointTensor]) -> CheckpointError:
    reason = str(error)
    if "the tensor '" in reason or not tensors:
        return error
    words = set(re.findall(r"[\w.]+", reason))
    # An error has the names of layers, and then of tensors in them, or of the latter alone.
    named = [tensor for tensor in tensors if tensor.name.rpartition(".")[2] in words]
    meant = [tensor for tensor in named if tensor.name.rpartition(".")[0] in words] or named
    meant = meant or _of_experts(reason, tensors) or list(tensors)
    shown = shown_together(meant, "or")
    if len(meant) > _FEW:
        of_expert = next((tensor for tensor in meant if "exp" in tensor.name), meant[0])
        shown = f"{of_expert.shown} or {len(meant) - 1} more of its layer"
    reason = reason.rpartition("a layer cannot be read: ")[2]
    remedy = "" if ";" in reason else "; fetch the weights again"
    return CheckpointError(f"{shown}: {reason}{remedy}")


def _of_experts(reason: str, tensors: Sequence[CheckpointTensor]) -> list[CheckpointTensor]:
    """A tensor of each expert's layer that an error of a mixture speaks of."""
    found = []
    for part, expert in re.findall(r"the (first|second) layer of (experts\.\d+)", reason):
        own = [tensor for tensor in tensors if f"{expert}." in tensor.name]
        found += own[:1] if part == "first" else own[-1:]
    return found


def listed(names: Iterable[str]) -> str:
    """Some tensors by name, or the first of many."""
    names = list(dict.fromkeys(names))
    shown = ", ".join(repr(name) for name in names[:3])
    noun = "the tensor" if len(names) == 1 else f"{len(names)} tensors:"
    return f"{noun} {shown}{', ...' if len(names) > 3 else ''}"


def place_of(tensors: Sequence[CheckpointTensor], directory: str) -> str:
    """The one file that holds the tensors, or else the directory."""
    files = {str(tensor.path) for tensor in tensors}
    return files.pop() if len(files) == 1 else directory
